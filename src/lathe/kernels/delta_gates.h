// From the convolution's output and the b, a projections to the inputs of the gated delta rule.
// mixed: [tokens, 2 key_heads key_dim + value_heads value_dim] = [q | k | v]; ba: [tokens, 2 value_heads] = [b | a];
// a_log, dt_bias: [value_heads] (f32); segments: i32 [tokens].
//   q = mixed_q / sqrt(|mixed_q|^2 + 1e-6) key_dim^-1/2;  k = mixed_k / sqrt(|mixed_k|^2 + 1e-6)  per head;  v = mixed_v
//   beta = sigmoid(b);  g = -exp(a_log) softplus(a + dt_bias)
// Padding tokens (segment 0) get q = k = v = 0, beta = 0, g = 0 and no gradient.
// q, k: [tokens, key_heads, key_dim]; v: [tokens, value_heads, value_dim]; beta, g: [tokens, value_heads].
// Backward: dx = rho (dy - y <dy, y>) for the l2 norms (dy = dq key_dim^-1/2 for q); db = dbeta beta (1 - beta);
// da = -exp(a_log) sigmoid(a + dt_bias) dg; ddt_bias += sum da; da_log += sum dg g (absent: not
// wanted). dmixed, dba overwritten.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct DeltaGatesParams {
  int64_t tokens = 0;
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
};
using DeltaGatesForward = void(Queue& queue, const DeltaGatesParams& params, ConstView mixed, ConstView ba,
                               ConstView a_log, ConstView dt_bias, ConstView segments, View q, View k, View v,
                               View beta, View g);
using DeltaGatesBackward = void(Queue& queue, const DeltaGatesParams& params, ConstView dq, ConstView dk,
                                ConstView dv, ConstView dbeta, ConstView dg, ConstView mixed, ConstView ba,
                                ConstView a_log, ConstView dt_bias, ConstView segments, View dmixed, View dba,
                                View da_log, View ddt_bias, View scratch);
inline constexpr int64_t kDeltaGatesTokenBlock = 128;
[[nodiscard]] inline int64_t delta_gates_backward_scratch(const DeltaGatesParams& p) {
  return (p.tokens + kDeltaGatesTokenBlock - 1) / kDeltaGatesTokenBlock * 2 * p.value_heads;
}

// Entry checks shared by the implementations.
void check_delta_gates_forward(const DeltaGatesParams& params, ConstView mixed, ConstView ba, ConstView a_log,
                               ConstView dt_bias, ConstView segments, ConstView q, ConstView k, ConstView v,
                               ConstView beta, ConstView g);
void check_delta_gates_backward(const DeltaGatesParams& params, ConstView dq, ConstView dk, ConstView dv,
                                ConstView dbeta, ConstView dg, ConstView mixed, ConstView ba, ConstView a_log,
                                ConstView dt_bias, ConstView segments, ConstView dmixed, ConstView dba,
                                ConstView da_log, ConstView ddt_bias, ConstView scratch);

}  // namespace lathe
