#include "lathe/core/view.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(Shape, SizeRankAndText) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.size(), 24);
  EXPECT_EQ(shape[1], 3);
  EXPECT_EQ(shape.text(), "[2, 3, 4]");
  EXPECT_EQ((Shape{5, 0}).size(), 0);
  EXPECT_EQ(Shape().rank(), 0);
  EXPECT_EQ(Shape().text(), "[]");
}

TEST(Shape, Equality) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
  EXPECT_NE((Shape{0}), Shape());  // equal extents of different rank
}

TEST(Shape, HasAtMostFourExtents) {
  EXPECT_THROW((Shape{1, 2, 3, 4, 5}), Error);
  Shape shape{1, 2, 3};
  shape.append(4);
  EXPECT_EQ(shape, (Shape{1, 2, 3, 4}));
  EXPECT_THROW(shape.append(5), Error);
}

TEST(View, EmptyMeansAbsentNotZeroElements) {
  EXPECT_TRUE(View().empty());
  EXPECT_EQ(View().size(), 0);
  EXPECT_FALSE(View(nullptr, DType::kF32, Shape{0, 3}).empty());
  EXPECT_EQ(View(nullptr, DType::kF32, Shape{0, 3}).size(), 0);
}

TEST(View, RowsAndReshape) {
  std::array<std::byte, 48> data{};
  const View view(data.data(), DType::kBF16, Shape{4, 3, 2});
  EXPECT_EQ(view.bytes(), 48);
  EXPECT_EQ(view.dim(1), 3);
  const View rows = view.rows(1, 2);
  EXPECT_EQ(rows.data, data.data() + 12);
  EXPECT_EQ(rows.shape, (Shape{2, 3, 2}));
  EXPECT_EQ(view.rows(4, 0).size(), 0);
  EXPECT_EQ(view.reshape({12, 2}).shape, (Shape{12, 2}));
  EXPECT_EQ(view.reshape({12, 2}).dtype, DType::kBF16);
  EXPECT_THROW(static_cast<void>(view.rows(3, 2)), Error);
  EXPECT_THROW(static_cast<void>(view.rows(-1, 2)), Error);
  EXPECT_THROW(static_cast<void>(view.reshape({5, 5})), Error);
}

TEST(View, ConvertsToConstView) {
  std::array<std::byte, 8> data{};
  const View view(data.data(), DType::kI32, Shape{2});
  const ConstView constant = view;
  EXPECT_EQ(constant.data, data.data());
  EXPECT_EQ(constant.dtype, DType::kI32);
  EXPECT_EQ(constant.shape, view.shape);
  static_assert(!std::is_convertible_v<ConstView, View>);
}

}  // namespace
}  // namespace lathe
