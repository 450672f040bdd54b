// Views: a pointer into device memory with element type and extents; dense, row-major, not owning, passed by value.
// Only kernels turn the pointer into elements (kernels/access.h); model, head and engine code hand views on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "lathe/core/dtype.h"
#include "lathe/core/error.h"

namespace lathe {

class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    LATHE_CHECK(dims.size() <= kMaxRank, "rank {}", dims.size());
    for (const int64_t dim : dims) dims_[static_cast<size_t>(rank_++)] = dim;
  }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  [[nodiscard]] int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  void append(int64_t dim) {
    LATHE_CHECK(rank_ < kMaxRank, "rank {}", rank_);
    dims_[static_cast<size_t>(rank_++)] = dim;
  }
  bool operator==(const Shape&) const = default;
  [[nodiscard]] std::string text() const;  // "[2, 3]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

template <typename Pointer>
struct BasicView {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  BasicView() = default;
  BasicView(Pointer d, DType t, Shape s) : data(d), dtype(t), shape(s) {}
  // View converts to ConstView, not back.
  template <typename Other>
    requires(!std::is_same_v<Other, Pointer> && std::is_convertible_v<Other, Pointer>)
  BasicView(const BasicView<Other>& other) : data(other.data), dtype(other.dtype), shape(other.shape) {}

  // An absent optional argument. A view of zero elements is not empty() if it has a shape.
  [[nodiscard]] bool empty() const { return data == nullptr && shape.rank() == 0; }
  [[nodiscard]] int64_t size() const { return shape.rank() == 0 ? 0 : shape.size(); }
  [[nodiscard]] int64_t bytes() const { return size() * dtype_size(dtype); }
  [[nodiscard]] int64_t dim(int i) const { return shape[i]; }
  // The same elements with other extents.
  [[nodiscard]] BasicView reshape(Shape s) const {
    LATHE_CHECK(s.size() == size(), "{} as {}", shape.text(), s.text());
    return {data, dtype, s};
  }
  // Rows [begin, begin + count) of the first extent.
  [[nodiscard]] BasicView rows(int64_t begin, int64_t count) const {
    LATHE_CHECK(begin >= 0 && count >= 0 && begin + count <= shape[0], "rows {} + {} of {}", begin, count, shape[0]);
    Shape s{count};
    int64_t width = 1;
    for (int i = 1; i < shape.rank(); ++i) {
      s.append(shape[i]);
      width *= shape[i];
    }
    return {data == nullptr ? nullptr : data + begin * width * dtype_size(dtype), dtype, s};
  }
};

using View = BasicView<std::byte*>;
using ConstView = BasicView<const std::byte*>;

}  // namespace lathe
