#include <cmath>

#include "lathe/kernels/access.h"
#include "lathe/kernels/gated_rmsnorm.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

template <typename T>
void forward(const GatedRmsNormParams& params, int64_t rows, int64_t cols, const T* x, const T* z, const T* w,
             T* y, T* rstd) {
  for (int64_t r = 0; r < rows; ++r) {
    T sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += x[r * cols + c] * x[r * cols + c];
    rstd[r] = T(1) / std::sqrt(sum / T(cols) + T(params.eps));
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      y[i] = x[i] * rstd[r] * w[c] * z[i] * sigmoid(z[i]);
    }
  }
}

template <typename T>
struct Gradients {
  T* dx;
  T* dz;
  T* dw;
};

template <typename T>
void backward(int64_t rows, int64_t cols, const T* dy, const T* x, const T* z, const T* w, const T* rstd,
              const Gradients<T>& out) {
  for (int64_t r = 0; r < rows; ++r) {
    T sum = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      sum += dy[i] * z[i] * sigmoid(z[i]) * w[c] * x[i] * rstd[r];
    }
    const T mean = sum / T(cols);
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      const T s = sigmoid(z[i]);
      const T t = dy[i] * z[i] * s;
      const T xh = x[i] * rstd[r];
      if (out.dw != nullptr) out.dw[c] += t * xh;
      out.dx[i] = rstd[r] * (t * w[c] - xh * mean);
      out.dz[i] = dy[i] * xh * w[c] * silu_slope(z[i], s);
    }
  }
}

void gated_rmsnorm_forward(Queue& /*queue*/, const GatedRmsNormParams& params, ConstView x, ConstView z,
                           ConstView w, View y, View rstd) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("gated_rmsnorm_forward", "z", z, x.shape);
  check_shape("gated_rmsnorm_forward", "w", w, Shape{cols});
  check_shape("gated_rmsnorm_forward", "y", y, x.shape);
  check_shape("gated_rmsnorm_forward", "rstd", rstd, Shape{rows});
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    forward<T>(params, rows, cols, elements<T>(x), elements<T>(z), elements<T>(w), elements<T>(y),
               elements<T>(rstd));
  });
}

void gated_rmsnorm_backward(Queue& /*queue*/, const GatedRmsNormParams& /*params*/, ConstView dy, ConstView x,
                            ConstView z, ConstView w, ConstView rstd, View dx, View dz, View dw,
                            View /*scratch*/) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("gated_rmsnorm_backward", "dy", dy, x.shape);
  check_shape("gated_rmsnorm_backward", "z", z, x.shape);
  check_shape("gated_rmsnorm_backward", "w", w, Shape{cols});
  check_shape("gated_rmsnorm_backward", "rstd", rstd, Shape{rows});
  check_shape("gated_rmsnorm_backward", "dx", dx, x.shape);
  check_shape("gated_rmsnorm_backward", "dz", dz, x.shape);
  if (!dw.empty()) check_shape("gated_rmsnorm_backward", "dw", dw, Shape{cols});
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    backward<T>(rows, cols, elements<T>(dy), elements<T>(x), elements<T>(z), elements<T>(w),
                elements<T>(rstd), {elements<T>(dx), elements<T>(dz), optional_elements<T>(dw)});
  });
}

}  // namespace

void register_gated_rmsnorm(KernelTable& table) {
  table.gated_rmsnorm_forward = gated_rmsnorm_forward;
  table.gated_rmsnorm_backward = gated_rmsnorm_backward;
}

}  // namespace lathe::ref
