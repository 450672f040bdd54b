#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/matmul.h"
#include "lathe/kernels/matmul_tile.h"
#include "lathe/kernels/onednn_gemm.h"
#include "lathe/kernels/register.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// The largest tile, and how far k goes at once where operands are converted into the workspace.
constexpr int64_t kTileM = 512;
constexpr int64_t kTileN = 1024;
constexpr int64_t kDepthBytes = 2048;
static_assert((kTileM + kTileN) * kDepthBytes <= Queue::kThreadWorkspaceBytes);
// Below this many tiles they are made smaller, so that a handful of threads has work.
constexpr int64_t kEnoughTiles = 16;
constexpr int64_t kSmallestTile = 64;

LATHE_INLINE int64_t halved(int64_t extent) {
  return ceil_div(extent, 2 * kSmallestTile) * kSmallestTile;
}

LATHE_INLINE void convert(const float* from, int64_t count, BFloat16* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
}
LATHE_INLINE void convert(const BFloat16* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_f32(from[i]);
}
LATHE_INLINE void convert(const float* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_f32(to_bf16(from[i]));
}
LATHE_INLINE void convert(const BFloat16* from, int64_t count, BFloat16* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

template <typename E>
struct Values {
  const E* data = nullptr;
  int64_t ld = 0;
};

// The stored [rows, columns] behind an operand as values of E: where they lie, or converted into `space`.
template <typename E>
LATHE_INLINE Values<E> values_of(const Operand& x, int64_t rows, int64_t columns, bool convert_it, E* space) {
  if (!convert_it) return {reinterpret_cast<const E*>(x.data), x.ld};
  for (int64_t i = 0; i < rows; ++i) {
    if (x.bf16) {
      convert(reinterpret_cast<const BFloat16*>(x.data) + i * x.ld, columns, space + i * columns);
    } else {
      convert(reinterpret_cast<const float*>(x.data) + i * x.ld, columns, space + i * columns);
    }
  }
  return {space, columns};
}

LATHE_INLINE void multiply(int64_t m, int64_t n, int64_t k, bool trans_a, Values<float> a, bool trans_b,
                           Values<float> b, bool accumulate, float* c, int64_t ldc) {
  gemm_f32(trans_a, trans_b, m, n, k, 1.0F, a.data, a.ld, b.data, b.ld, accumulate ? 1.0F : 0.0F, c, ldc);
}
LATHE_INLINE void multiply(int64_t m, int64_t n, int64_t k, bool trans_a, Values<BFloat16> a, bool trans_b,
                           Values<BFloat16> b, bool accumulate, float* c, int64_t ldc) {
  gemm_bf16(trans_a, trans_b, m, n, k, a.data, a.ld, b.data, b.ld, accumulate ? 1.0F : 0.0F, c, ldc);
}

template <typename E>
LATHE_INLINE void multiply_as(std::byte* workspace, bool convert_a, bool convert_b, int64_t m, int64_t n,
                              int64_t k, const Operand& a, const Operand& b, bool accumulate, float* c,
                              int64_t ldc) {
  constexpr int64_t kDepth = kDepthBytes / static_cast<int64_t>(sizeof(E));
  E* const space_a = reinterpret_cast<E*>(workspace);
  E* const space_b = space_a + kTileM * kDepth;
  const int64_t step = convert_a || convert_b ? kDepth : max_of(k, int64_t{1});
  for (int64_t begin = 0; begin == 0 || begin < k; begin += step) {
    const int64_t depth = min_of(step, k - begin);
    const Operand part_a = a.from(0, begin);
    const Operand part_b = b.from(begin, 0);
    const Values<E> va = values_of(part_a, a.trans ? depth : m, a.trans ? m : depth, convert_a, space_a);
    const Values<E> vb = values_of(part_b, b.trans ? n : depth, b.trans ? depth : n, convert_b, space_b);
    multiply(m, n, depth, a.trans, va, b.trans, vb, accumulate || begin > 0, c, ldc);
  }
}

LATHE_INLINE Operand operand(ConstView x, bool trans) {
  LATHE_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16, "matmul: operand of {}",
              dtype_name(x.dtype));
  return {x.data, x.dtype == DType::kBF16, x.dim(1), trans};
}

void matmul(Queue& queue, const MatmulParams& params, ConstView a, ConstView b, View c) {
  const int64_t m = c.dim(0);
  const int64_t n = c.dim(1);
  const int64_t k = a.dim(params.trans_a ? 0 : 1);
  check_shape("matmul", "a", a, params.trans_a ? Shape{k, m} : Shape{m, k});
  check_shape("matmul", "b", b, params.trans_b ? Shape{n, k} : Shape{k, n});
  if (m == 0 || n == 0) return;
  const Operand left = operand(a, params.trans_a);
  const Operand right = operand(b, params.trans_b);
  float* const out = elements<float>(c);
  const TileMath math = tile_math(params.compute);
  const TileSize tile = tile_size(m, n, 1);
  const int64_t tiles_n = ceil_div(n, tile.n);
  parallel_for(queue, ceil_div(m, tile.m) * tiles_n, [&](int64_t index, int thread) {
    const int64_t i = index / tiles_n * tile.m;
    const int64_t j = index % tiles_n * tile.n;
    multiply_tile(queue.thread_workspace(thread), math, min_of(tile.m, m - i), min_of(tile.n, n - j), k,
                  left.from(i, 0), right.from(0, j), params.accumulate, out + i * n + j, n);
  });
}

}  // namespace

TileMath tile_math(DType compute) {
  if (compute != DType::kBF16) return TileMath::kF32;
  return onednn_has_bf16() ? TileMath::kBf16 : TileMath::kBf16Widened;
}

TileSize tile_size(int64_t m, int64_t n, int64_t groups) {
  TileSize tile{max_of(int64_t{1}, min_of(m, kTileM)), max_of(int64_t{1}, min_of(n, kTileN))};
  while (ceil_div(m, tile.m) * ceil_div(n, tile.n) * groups < kEnoughTiles) {
    const bool can_narrow = tile.n > 2 * kSmallestTile;
    const bool can_flatten = tile.m > kSmallestTile;
    if (!can_narrow && !can_flatten) break;
    if (can_narrow && (tile.n > tile.m || !can_flatten)) {
      tile.n = halved(tile.n);
    } else {
      tile.m = halved(tile.m);
    }
  }
  return tile;
}

void multiply_tile(std::byte* workspace, TileMath math, int64_t m, int64_t n, int64_t k, const Operand& a,
                   const Operand& b, bool accumulate, float* c, int64_t ldc) {
  switch (math) {
    case TileMath::kF32:
      multiply_as<float>(workspace, a.bf16, b.bf16, m, n, k, a, b, accumulate, c, ldc);
      break;
    case TileMath::kBf16:
      multiply_as<BFloat16>(workspace, !a.bf16, !b.bf16, m, n, k, a, b, accumulate, c, ldc);
      break;
    case TileMath::kBf16Widened:
      multiply_as<float>(workspace, true, true, m, n, k, a, b, accumulate, c, ldc);
      break;
  }
}

void register_matmul(KernelTable& table) {
  table.matmul = matmul;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
