#include "lathe/kernels/access.h"
#include "lathe/kernels/grouped_matmul.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/matmul_tile.h"
#include "lathe/kernels/register.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// Row-major [.., ld] at element `first`.
LATHE_INLINE Operand operand(ConstView x, int64_t first, int64_t ld, bool trans) {
  const bool bf16 = x.dtype == DType::kBF16;
  LATHE_CHECK(bf16 || x.dtype == DType::kF32, "grouped_matmul: operand of {}", dtype_name(x.dtype));
  return {x.data + first * (bf16 ? 2 : 4), bf16, ld, trans};
}

struct Groups {
  int64_t used = 0;      // experts with rows
  int64_t max_rows = 0;  // of one expert
};
LATHE_INLINE Groups groups_of(const int32_t* offsets, int64_t experts, int64_t rows) {
  LATHE_CHECK(offsets[0] == 0 && offsets[experts] <= rows, "grouped_matmul: offsets {}..{} of {} rows",
              offsets[0], offsets[experts], rows);
  Groups groups;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = offsets[e + 1] - offsets[e];
    LATHE_CHECK(count >= 0, "grouped_matmul: offsets fall at expert {}", e);
    groups.used += count > 0 ? 1 : 0;
    groups.max_rows = max_of(groups.max_rows, count);
  }
  return groups;
}

void grouped_matmul(Queue& queue, const GroupedMatmulParams& params, ConstView a, ConstView w,
                    ConstView offsets, View c) {
  const int64_t experts = w.dim(0);
  const int64_t k = w.dim(params.trans_w ? 2 : 1);
  const int64_t n = w.dim(params.trans_w ? 1 : 2);
  check_shape("grouped_matmul", "offsets", offsets, {experts + 1});
  check_shape("grouped_matmul", "a", a, {a.dim(0), k});
  check_shape("grouped_matmul", "c", c, {a.dim(0), n});
  const int32_t* const begin = elements<int32_t>(offsets);
  const Groups groups = groups_of(begin, experts, a.dim(0));
  if (groups.used == 0 || n == 0) return;
  float* const out = elements<float>(c);
  const TileMath math = tile_math(params.compute);
  const TileSize tile = tile_size(groups.max_rows, n, groups.used);
  const int64_t tiles_n = ceil_div(n, tile.n);
  int64_t row_tiles = 0;
  for (int64_t e = 0; e < experts; ++e) row_tiles += ceil_div(begin[e + 1] - begin[e], tile.m);
  parallel_for(queue, row_tiles * tiles_n, [&](int64_t index, int thread) {
    int64_t e = 0;
    int64_t row_tile = index / tiles_n;
    for (;; ++e) {
      const int64_t count = ceil_div(begin[e + 1] - begin[e], tile.m);
      if (row_tile < count) break;
      row_tile -= count;
    }
    const int64_t i = begin[e] + row_tile * tile.m;
    const int64_t j = index % tiles_n * tile.n;
    const Operand weights = operand(w, e * n * k, w.dim(2), params.trans_w);
    multiply_tile(queue.thread_workspace(thread), math, min_of(tile.m, begin[e + 1] - i),
                  min_of(tile.n, n - j), k, operand(a, i * k, k, false), weights.from(0, j), false,
                  out + i * n + j, n);
  });
}

void weight_gradient(Queue& queue, const GroupedMatmulParams& params, ConstView dy, ConstView x,
                     ConstView offsets, View dw) {
  const int64_t experts = dw.dim(0);
  const int64_t n = dw.dim(1);
  const int64_t k = dw.dim(2);
  check_shape("grouped_matmul", "offsets", offsets, {experts + 1});
  check_shape("grouped_matmul", "dy", dy, {dy.dim(0), n});
  check_shape("grouped_matmul", "x", x, {dy.dim(0), k});
  const int32_t* const begin = elements<int32_t>(offsets);
  const Groups groups = groups_of(begin, experts, dy.dim(0));
  if (groups.used == 0 || n == 0 || k == 0) return;
  float* const out = elements<float>(dw);
  const TileMath math = tile_math(params.compute);
  const TileSize tile = tile_size(n, k, groups.used);
  const int64_t tiles_k = ceil_div(k, tile.n);
  const int64_t tiles = ceil_div(n, tile.m) * tiles_k;
  parallel_for(queue, experts * tiles, [&](int64_t index, int thread) {
    const int64_t e = index / tiles;
    const int64_t rows = begin[e + 1] - begin[e];
    if (rows == 0) return;
    const int64_t i = index % tiles / tiles_k * tile.m;
    const int64_t j = index % tiles_k * tile.n;
    multiply_tile(queue.thread_workspace(thread), math, min_of(tile.m, n - i), min_of(tile.n, k - j), rows,
                  operand(dy, begin[e] * n, n, true).from(i, 0),
                  operand(x, begin[e] * k, k, false).from(0, j), true, out + e * n * k + i * k + j, k);
  });
}

}  // namespace

void register_grouped_matmul(KernelTable& table) {
  table.grouped_matmul = grouped_matmul;
  table.grouped_matmul_weight_gradient = weight_gradient;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
