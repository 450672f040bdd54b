// One tile of a matrix product on one thread, for operands of any type; shared by matmul_cpu.cc and
// grouped_matmul_cpu.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lathe/core/dtype.h"
#include "lathe/kernels/simd_math.h"

namespace lathe::LATHE_ISA_NAMESPACE {

// op(X), X row-major with leading dimension ld; op is the transpose if trans.
struct Operand {
  const std::byte* data = nullptr;
  bool bf16 = false;  // else f32
  int64_t ld = 0;
  bool trans = false;

  // op(X) from (row, column) on.
  [[gnu::always_inline, nodiscard]] inline Operand from(int64_t row, int64_t column) const {
    const int64_t skipped = trans ? column * ld + row : row * ld + column;
    return {data + skipped * (bf16 ? 2 : 4), bf16, ld, trans};
  }
};

enum class TileMath : uint8_t {
  kF32,          // products of f32 values
  kBf16,         // inputs rounded to bf16, multiplied natively
  kBf16Widened,  // inputs rounded to bf16, multiplied in f32: the same values on any processor
};
[[nodiscard]] TileMath tile_math(DType compute);

// Rows and columns of the tiles of `groups` products of [m, n] each. Depends on the problem alone, never on
// threads.
struct TileSize {
  int64_t m = 0;
  int64_t n = 0;
};
[[nodiscard]] TileSize tile_size(int64_t m, int64_t n, int64_t groups);

// c[m, n] = op(A) op(B) (+ c), for m, n within a tile_size; k is any. workspace: that of the thread.
void multiply_tile(std::byte* workspace, TileMath math, int64_t m, int64_t n, int64_t k, const Operand& a,
                   const Operand& b, bool accumulate, float* c, int64_t ldc);

}  // namespace lathe::LATHE_ISA_NAMESPACE
