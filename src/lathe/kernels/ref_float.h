// Picks the instance of a reference kernel: fn(float{}) or fn(double{}), by the type of a view.
#pragma once

#include <cmath>

#include "lathe/core/view.h"

namespace lathe::ref {

template <typename Fn>
void with_float_type(DType dtype, Fn&& fn) {
  if (dtype == DType::kF64) {
    fn(double{});
  } else {
    LATHE_CHECK(dtype == DType::kF32, "expected f32 or f64, not {}", dtype_name(dtype));
    fn(float{});
  }
}

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}
// d (x sigmoid(x)) / dx, given s = sigmoid(x).
template <typename T>
T silu_slope(T x, T s) {
  return s * (T(1) + x * (T(1) - s));
}

}  // namespace lathe::ref
