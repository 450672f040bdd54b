#include "lathe/kernels/onednn_gemm.h"
#include "lathe/kernels/simd_math.h"
#include "lathe/kernels/unit_lower_inverse.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

constexpr int64_t kBlock = 16;

// Rows of a diagonal block: x_i = unit_i - sum_{j < i} l_ij x_j.
void invert_block(int64_t n, int64_t size, const float* l, float* x) {
  for (int64_t i = 0; i < size; ++i) {
    float row[kBlock] = {};
    row[i] = 1.0F;
    for (int64_t j = 0; j < i; ++j) {
      const float factor = l[i * n + j];
      const float* from = x + j * n;
#pragma omp simd
      for (int64_t c = 0; c < size; ++c) row[c] -= factor * from[c];
    }
    for (int64_t c = 0; c < size; ++c) x[i * n + c] = row[c];
  }
}

}  // namespace

void unit_lower_inverse(int64_t n, const float* l, float* x, float* scratch) {
  for (int64_t i = 0; i < n * n; ++i) x[i] = 0.0F;
  for (int64_t at = 0; at < n; at += kBlock) {
    invert_block(n, min_of(kBlock, n - at), l + at * n + at, x + at * n + at);
  }
  for (int64_t size = kBlock; size < n; size *= 2) {
    for (int64_t at = 0; at + size < n; at += 2 * size) {
      const int64_t below = at + size;
      const int64_t rows = min_of(size, n - below);
      gemm_f32(false, false, rows, size, size, 1.0F, l + below * n + at, n, x + at * n + at, n, 0.0F, scratch,
               size);
      gemm_f32(false, false, rows, size, rows, -1.0F, x + below * n + below, n, scratch, size, 0.0F,
               x + below * n + at, n);
    }
  }
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
