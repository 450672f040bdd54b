// Cutting loops into tasks for *_cpu.cc: blocks of fixed size, so that sums do not depend on the number of
// threads.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/kernels/simd_math.h"

namespace lathe::LATHE_ISA_NAMESPACE {

// Elements of one task of a plain element loop: 64 KiB of f32.
inline constexpr int64_t kElementBlock = 16384;

// fn(begin, end) over [0, total) in blocks of `block`.
template <typename Fn>
LATHE_INLINE void for_blocks(Queue& queue, int64_t total, int64_t block, Fn&& fn) {
  parallel_for(queue, ceil_div(total, block), [&](int64_t index) {
    const int64_t begin = index * block;
    fn(begin, min_of(begin + block, total));
  });
}

// The same over rows of `cols` elements, about kElementBlock elements at a time.
template <typename Fn>
LATHE_INLINE void for_row_blocks(Queue& queue, int64_t rows, int64_t cols, Fn&& fn) {
  for_blocks(queue, rows, max_of(int64_t{1}, kElementBlock / max_of(int64_t{1}, cols)), fn);
}

// out[c] += sum over blocks, in order, of partials[block * stride + c].
LATHE_INLINE void add_partials(Queue& queue, const float* partials, int64_t blocks, int64_t stride,
                               int64_t cols, float* out) {
  for_blocks(queue, cols, 512, [&](int64_t begin, int64_t end) {
    for (int64_t b = 0; b < blocks; ++b) {
      const float* from = partials + b * stride;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) out[c] += from[c];
    }
  });
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
