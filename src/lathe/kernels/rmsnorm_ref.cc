#include <cmath>

#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/rmsnorm.h"

namespace lathe::ref {
namespace {

template <typename T>
void forward(const RmsNormParams& params, int64_t rows, int64_t cols, const T* x, const T* w, T* y, T* rstd) {
  for (int64_t r = 0; r < rows; ++r) {
    T sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += x[r * cols + c] * x[r * cols + c];
    rstd[r] = T(1) / std::sqrt(sum / T(cols) + T(params.eps));
    for (int64_t c = 0; c < cols; ++c)
      y[r * cols + c] = x[r * cols + c] * rstd[r] * (T(params.offset) + w[c]);
  }
}

template <typename T>
void backward(const RmsNormParams& params, int64_t rows, int64_t cols, const T* dy, const T* x, const T* w,
              const T* rstd, T* dx, T* dw) {
  for (int64_t r = 0; r < rows; ++r) {
    T sum = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      sum += dy[i] * (T(params.offset) + w[c]) * x[i] * rstd[r];
    }
    const T mean = sum / T(cols);
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      const T xh = x[i] * rstd[r];
      if (dw != nullptr) dw[c] += dy[i] * xh;
      dx[i] = rstd[r] * (dy[i] * (T(params.offset) + w[c]) - xh * mean);
    }
  }
}

void rmsnorm_forward(Queue& /*queue*/, const RmsNormParams& params, ConstView x, ConstView w, View y,
                     View rstd) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("rmsnorm_forward", "w", w, Shape{cols});
  check_shape("rmsnorm_forward", "y", y, x.shape);
  check_shape("rmsnorm_forward", "rstd", rstd, Shape{rows});
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    forward<T>(params, rows, cols, elements<T>(x), elements<T>(w), elements<T>(y), elements<T>(rstd));
  });
}

void rmsnorm_backward(Queue& /*queue*/, const RmsNormParams& params, ConstView dy, ConstView x, ConstView w,
                      ConstView rstd, View dx, View dw, View /*scratch*/) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("rmsnorm_backward", "dy", dy, x.shape);
  check_shape("rmsnorm_backward", "w", w, Shape{cols});
  check_shape("rmsnorm_backward", "rstd", rstd, Shape{rows});
  check_shape("rmsnorm_backward", "dx", dx, x.shape);
  if (!dw.empty()) check_shape("rmsnorm_backward", "dw", dw, Shape{cols});
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    backward<T>(params, rows, cols, elements<T>(dy), elements<T>(x), elements<T>(w), elements<T>(rstd),
                elements<T>(dx), optional_elements<T>(dw));
  });
}

}  // namespace

void register_rmsnorm(KernelTable& table) {
  table.rmsnorm_forward = rmsnorm_forward;
  table.rmsnorm_backward = rmsnorm_backward;
}

}  // namespace lathe::ref
