// Depthwise causal convolution and SiLU: u[t, c] = sum_j w[c, j] x[t - (taps - 1) + j, c] over taps of the same row and
// the same non-zero segment as t; y = silu(u). The last tap is the current token. Padding tokens (segment 0) give 0.
// x, y: [rows * tokens, channels]; w: [channels, taps] (f32); segments: i32 [rows * tokens].
// Carried prefix (optional, all or none): x_tail [rows, taps - 1, channels] are the inputs before the row's first token
// (oldest first), tail_segments i32 [rows, taps - 1] their segments (0 = nothing there).
// The tail to hand on is the last taps - 1 inputs of [x_tail | x] of each row: causal_conv_tail writes it.
// Backward: du = dy silu'(u) (u recomputed); dx and dx_tail overwritten, dw accumulated (absent: not wanted); padding
// tokens have zero gradient. A gradient of the tail handed on is added by the caller to the last rows of dx.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct CausalConvParams {
  int64_t rows = 1;
  int64_t tokens = 0;
  int64_t channels = 0;
  int64_t taps = 4;
};
using CausalConvForward = void(Queue& queue, const CausalConvParams& params, ConstView x, ConstView w,
                               ConstView segments, ConstView x_tail, ConstView tail_segments, View y);
using CausalConvBackward = void(Queue& queue, const CausalConvParams& params, ConstView dy, ConstView x,
                                ConstView w, ConstView segments, ConstView x_tail, ConstView tail_segments,
                                View dx, View dw, View dx_tail, View scratch);
using CausalConvTail = void(Queue& queue, const CausalConvParams& params, ConstView x, ConstView segments,
                            ConstView x_tail, ConstView tail_segments, View next_tail,
                            View next_tail_segments);
// dw is summed over blocks of kCausalConvTokenBlock tokens of a row, then over blocks in order.
inline constexpr int64_t kCausalConvTokenBlock = 256;
[[nodiscard]] inline int64_t causal_conv_backward_scratch(const CausalConvParams& p) {
  return p.rows * ((p.tokens + kCausalConvTokenBlock - 1) / kCausalConvTokenBlock) * p.channels * p.taps;
}

}  // namespace lathe
