// From views to elements: for kernels only (and tests). Model, head and engine code must not include this.
#pragma once

#include "lathe/core/view.h"

namespace lathe {

template <typename T>
[[nodiscard, gnu::always_inline]] inline T* elements(View view) {
  LATHE_CHECK(view.dtype == DTypeOf<T>::kValue, "view of {} read as {}", dtype_name(view.dtype),
              dtype_name(DTypeOf<T>::kValue));
  return reinterpret_cast<T*>(view.data);
}
template <typename T>
[[nodiscard, gnu::always_inline]] inline const T* elements(ConstView view) {
  LATHE_CHECK(view.dtype == DTypeOf<T>::kValue, "view of {} read as {}", dtype_name(view.dtype),
              dtype_name(DTypeOf<T>::kValue));
  return reinterpret_cast<const T*>(view.data);
}
// nullptr for an absent optional argument.
template <typename T>
[[nodiscard, gnu::always_inline]] inline T* optional_elements(View view) {
  return view.empty() ? nullptr : elements<T>(view);
}
template <typename T>
[[nodiscard, gnu::always_inline]] inline const T* optional_elements(ConstView view) {
  return view.empty() ? nullptr : elements<T>(view);
}

// Entry checks of kernels: argument `name` has this shape.
[[gnu::always_inline]] inline void check_shape(const char* op, const char* name, ConstView view,
                                               const Shape& shape) {
  if (!(view.shape == shape)) [[unlikely]]
    detail::wrong_shape(op, name, view.shape, shape);
}

}  // namespace lathe
