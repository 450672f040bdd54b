// Views: a pointer into device memory with element type and extents; dense, row-major, not owning, passed by
// value. Only kernels turn the pointer into elements (kernels/access.h); model, head and engine code hand
// views on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "lathe/core/dtype.h"
#include "lathe/core/error.h"

namespace lathe {

// Everything here is inlined always: kernels compiled for one instruction set use it, and the linker may
// share copies.
#define LATHE_VIEW_INLINE [[nodiscard, gnu::always_inline]]

class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  [[gnu::always_inline]] Shape(std::initializer_list<int64_t> dims) {
    LATHE_CHECK(dims.size() <= kMaxRank, "rank {}", dims.size());
    for (const int64_t dim : dims) dims_[rank_++] = dim;
  }
  LATHE_VIEW_INLINE int rank() const { return rank_; }
  LATHE_VIEW_INLINE int64_t operator[](int i) const { return dims_[i]; }
  LATHE_VIEW_INLINE int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  [[gnu::always_inline]] void append(int64_t dim) {
    LATHE_CHECK(rank_ < kMaxRank, "rank {}", rank_);
    dims_[rank_++] = dim;
  }
  LATHE_VIEW_INLINE bool operator==(const Shape& other) const {
    bool same = rank_ == other.rank_;
    for (int i = 0; i < kMaxRank; ++i) same = same && dims_[i] == other.dims_[i];
    return same;
  }
  [[nodiscard]] std::string text() const;  // "[2, 3]"

 private:
  int64_t dims_[kMaxRank] = {};  // NOLINT(*-avoid-c-arrays): std::array's accessors are not inlined always
  int rank_ = 0;
};

namespace detail {
[[noreturn]] void wrong_shape(const char* what, const char* name, const Shape& actual, const Shape& expected);
}

template <typename Pointer>
struct BasicView {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  BasicView() = default;
  [[gnu::always_inline]] BasicView(Pointer d, DType t, Shape s) : data(d), dtype(t), shape(s) {}
  // View converts to ConstView, not back.
  template <typename Other>
  requires(!std::is_same_v<Other, Pointer> && std::is_convertible_v<Other, Pointer>)
      // NOLINTNEXTLINE(google-explicit-constructor)
      [[gnu::always_inline]] BasicView(const BasicView<Other>& other)
      : data(other.data), dtype(other.dtype), shape(other.shape) {}

  // An absent optional argument. A view of zero elements is not empty() if it has a shape.
  LATHE_VIEW_INLINE bool empty() const { return data == nullptr && shape.rank() == 0; }
  LATHE_VIEW_INLINE int64_t size() const { return shape.rank() == 0 ? 0 : shape.size(); }
  LATHE_VIEW_INLINE int64_t bytes() const { return size() * dtype_size(dtype); }
  LATHE_VIEW_INLINE int64_t dim(int i) const { return shape[i]; }
  // The same elements with other extents.
  LATHE_VIEW_INLINE BasicView reshape(Shape s) const {
    if (s.size() != size()) [[unlikely]]
      detail::wrong_shape("reshape", "view", shape, s);
    return {data, dtype, s};
  }
  // Rows [begin, begin + count) of the first extent.
  LATHE_VIEW_INLINE BasicView rows(int64_t begin, int64_t count) const {
    LATHE_CHECK(begin >= 0 && count >= 0 && begin + count <= shape[0], "rows {} + {} of {}", begin, count,
                shape[0]);
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
#undef LATHE_VIEW_INLINE

}  // namespace lathe
