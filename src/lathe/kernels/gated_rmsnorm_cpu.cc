#include "lathe/kernels/access.h"
#include "lathe/kernels/gated_rmsnorm.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_blocks.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// Returns 1 / rms.
float forward_row(int64_t cols, float eps, const float* x, const float* z, const float* w, float* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < cols; ++c) sum += x[c] * x[c];
  const float rstd = 1.0F / __builtin_sqrtf(sum / static_cast<float>(cols) + eps);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) y[c] = x[c] * rstd * w[c] * silu_f32(z[c]);
  return rstd;
}

struct Row {
  const float* dy;
  const float* x;
  const float* z;
  float* dx;
  float* dz;
};

// dw is nullptr when not wanted. The first loop leaves t w in dx, which the second turns into the gradient.
template <bool kWeightGradient>
void backward_row(int64_t cols, float rstd, const float* w, const Row& row, float* dw) {
  const float* dy = row.dy;
  const float* x = row.x;
  const float* z = row.z;
  float* dx = row.dx;
  float* dz = row.dz;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < cols; ++c) {
    const float s = sigmoid_f32(z[c]);
    const float t = dy[c] * (z[c] * s);
    const float xh = x[c] * rstd;
    const float tw = t * w[c];
    sum += tw * xh;
    if constexpr (kWeightGradient) dw[c] += t * xh;
    dz[c] = dy[c] * xh * w[c] * silu_slope_f32(z[c], s);
    dx[c] = tw;
  }
  const float mean = sum / static_cast<float>(cols);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) dx[c] = rstd * (dx[c] - x[c] * rstd * mean);
}

void gated_rmsnorm_forward(Queue& queue, const GatedRmsNormParams& params, ConstView x, ConstView z,
                           ConstView w, View y, View rstd) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("gated_rmsnorm_forward", "z", z, x.shape);
  check_shape("gated_rmsnorm_forward", "w", w, Shape{cols});
  check_shape("gated_rmsnorm_forward", "y", y, x.shape);
  check_shape("gated_rmsnorm_forward", "rstd", rstd, Shape{rows});
  const float* in = elements<float>(x);
  const float* gate = elements<float>(z);
  const float* weight = elements<float>(w);
  float* out = elements<float>(y);
  float* factor = elements<float>(rstd);
  const auto eps = static_cast<float>(params.eps);
  for_row_blocks(queue, rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      factor[r] = forward_row(cols, eps, in + r * cols, gate + r * cols, weight, out + r * cols);
    }
  });
}

void gated_rmsnorm_backward(Queue& queue, const GatedRmsNormParams& /*params*/, ConstView dy, ConstView x,
                            ConstView z, ConstView w, ConstView rstd, View dx, View dz, View dw,
                            View scratch) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("gated_rmsnorm_backward", "dy", dy, x.shape);
  check_shape("gated_rmsnorm_backward", "z", z, x.shape);
  check_shape("gated_rmsnorm_backward", "w", w, Shape{cols});
  check_shape("gated_rmsnorm_backward", "rstd", rstd, Shape{rows});
  check_shape("gated_rmsnorm_backward", "dx", dx, x.shape);
  check_shape("gated_rmsnorm_backward", "dz", dz, x.shape);
  const Row all{elements<float>(dy), elements<float>(x), elements<float>(z), elements<float>(dx),
                elements<float>(dz)};
  const float* weight = elements<float>(w);
  const float* factor = elements<float>(rstd);
  float* dweight = optional_elements<float>(dw);
  float* partials = nullptr;
  if (dweight != nullptr) {
    check_shape("gated_rmsnorm_backward", "dw", dw, Shape{cols});
    LATHE_CHECK(scratch.size() >= gated_rmsnorm_backward_scratch(rows, cols),
                "gated_rmsnorm_backward: scratch of {}", scratch.size());
    partials = elements<float>(scratch);
  }
  for_blocks(queue, rows, kGatedRmsNormRowBlock, [&](int64_t begin, int64_t end) {
    float* sums = nullptr;
    if (dweight != nullptr) {
      sums = partials + begin / kGatedRmsNormRowBlock * cols;
      __builtin_memset(sums, 0, sizeof(float) * static_cast<size_t>(cols));
    }
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * cols;
      const Row row{all.dy + at, all.x + at, all.z + at, all.dx + at, all.dz + at};
      if (sums != nullptr) {
        backward_row<true>(cols, factor[r], weight, row, sums);
      } else {
        backward_row<false>(cols, factor[r], weight, row, nullptr);
      }
    }
  });
  if (dweight != nullptr)
    add_partials(queue, partials, ceil_div(rows, kGatedRmsNormRowBlock), cols, cols, dweight);
}

}  // namespace

void register_gated_rmsnorm(KernelTable& table) {
  table.gated_rmsnorm_forward = gated_rmsnorm_forward;
  table.gated_rmsnorm_backward = gated_rmsnorm_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
