// Matrix product, row-major: C[m, n] = op(A) op(B) (+ C if accumulate); op(X) = X or its transpose.
// A: [m, k] ([k, m] if trans_a); B: [k, n] ([n, k] if trans_b); C: [m, n], f32 (f64 with f64 inputs).
// A and B are f32 or bf16 each (all f64 on ref). compute = kF32: products of f32 values (bf16 inputs are widened).
// compute = kBF16: inputs are rounded to bf16 first; sums are f32 always. Any extent may be 0 (k = 0 gives zeros).
// The three uses, for y = x W^T with W [out, in]: forward (trans_b), dx = dy W (none), dW = dy^T x (trans_a).
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct MatmulParams {
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
  DType compute = DType::kF32;
};
using Matmul = void(Queue& queue, const MatmulParams& params, ConstView a, ConstView b, View c);

}  // namespace lathe
