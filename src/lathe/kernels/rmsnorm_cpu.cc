#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/rmsnorm.h"
#include "lathe/kernels/simd_blocks.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// Returns 1 / rms.
float forward_row(int64_t cols, float eps, float offset, const float* x, const float* w, float* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < cols; ++c) sum += x[c] * x[c];
  const float rstd = 1.0F / __builtin_sqrtf(sum / static_cast<float>(cols) + eps);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) y[c] = x[c] * rstd * (offset + w[c]);
  return rstd;
}

void backward_row(int64_t cols, float offset, float rstd, const float* dy, const float* x, const float* w,
                  float* dx) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < cols; ++c) sum += dy[c] * (offset + w[c]) * x[c];
  const float mean = rstd * sum / static_cast<float>(cols);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) dx[c] = rstd * (dy[c] * (offset + w[c]) - x[c] * rstd * mean);
}

void add_weight_gradient(int64_t cols, float rstd, const float* dy, const float* x, float* dw) {
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) dw[c] += dy[c] * (x[c] * rstd);
}

void rmsnorm_forward(Queue& queue, const RmsNormParams& params, ConstView x, ConstView w, View y, View rstd) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("rmsnorm_forward", "w", w, Shape{cols});
  check_shape("rmsnorm_forward", "y", y, x.shape);
  check_shape("rmsnorm_forward", "rstd", rstd, Shape{rows});
  const float* in = elements<float>(x);
  const float* weight = elements<float>(w);
  float* out = elements<float>(y);
  float* factor = elements<float>(rstd);
  const auto eps = static_cast<float>(params.eps);
  const auto offset = static_cast<float>(params.offset);
  for_row_blocks(queue, rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      factor[r] = forward_row(cols, eps, offset, in + r * cols, weight, out + r * cols);
    }
  });
}

void rmsnorm_backward(Queue& queue, const RmsNormParams& params, ConstView dy, ConstView x, ConstView w,
                      ConstView rstd, View dx, View dw, View scratch) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("rmsnorm_backward", "dy", dy, x.shape);
  check_shape("rmsnorm_backward", "w", w, Shape{cols});
  check_shape("rmsnorm_backward", "rstd", rstd, Shape{rows});
  check_shape("rmsnorm_backward", "dx", dx, x.shape);
  const float* grad = elements<float>(dy);
  const float* in = elements<float>(x);
  const float* weight = elements<float>(w);
  const float* factor = elements<float>(rstd);
  float* out = elements<float>(dx);
  float* dweight = optional_elements<float>(dw);
  float* partials = nullptr;
  if (dweight != nullptr) {
    check_shape("rmsnorm_backward", "dw", dw, Shape{cols});
    LATHE_CHECK(scratch.size() >= rmsnorm_backward_scratch(rows, cols), "rmsnorm_backward: scratch of {}",
                scratch.size());
    partials = elements<float>(scratch);
  }
  const auto offset = static_cast<float>(params.offset);
  for_blocks(queue, rows, kRmsNormRowBlock, [&](int64_t begin, int64_t end) {
    float* sums = nullptr;
    if (dweight != nullptr) {
      sums = partials + begin / kRmsNormRowBlock * cols;
      __builtin_memset(sums, 0, sizeof(float) * static_cast<size_t>(cols));
    }
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * cols;
      if (sums != nullptr) add_weight_gradient(cols, factor[r], grad + at, in + at, sums);
      backward_row(cols, offset, factor[r], grad + at, in + at, weight, out + at);
    }
  });
  if (dweight != nullptr)
    add_partials(queue, partials, ceil_div(rows, kRmsNormRowBlock), cols, cols, dweight);
}

}  // namespace

void register_rmsnorm(KernelTable& table) {
  table.rmsnorm_forward = rmsnorm_forward;
  table.rmsnorm_backward = rmsnorm_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
