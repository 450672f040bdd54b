// Gated delta rule (Yang et al. 2024), per value head, state S [key_dim, value_dim], S = 0 at a segment's start:
//   S <- e^{g_t} S;  e_t = beta_t (v_t - S^T k_t);  S <- S + k_t e_t^T;  o_t = S^T q_t.
// Computed in chunks of `chunk` tokens (WY form; unit lower triangular inverse by blocks; exponents masked before exp).
// q, k: [rows * tokens, key_heads, key_dim] (normalised, q scaled); v, o: [rows * tokens, value_heads, value_dim];
// beta, g: [rows * tokens, value_heads]; value head h reads key head h / (value_heads / key_heads).
// segments: i32 [rows * tokens], contiguous per row; segment 0 is padding: output 0, gradients 0, and the tokens do not
// touch the state. Carried state (optional, all or none): initial_state [rows, value_heads, key_dim, value_dim] and its
// segment initial_segment i32 [rows]: it is used by the first tokens of a row if they are of that segment.
// final_state (optional): the state after each row's last non-padding token (the initial state if there is none).
// Padding between two tokens of one segment is passed over: the state goes on.
// chunk_states: rows x chunks x value_heads x key_dim x value_dim elements, the state entering each chunk, written by
// forward if not absent; backward needs it (the caller keeps it or runs forward again). An initial state that no token
// uses enters as 0.
// Backward: d_final_state optional; dq, dk, dv, dbeta, dg and d_initial_state (if not absent) are overwritten; dq and dk
// are summed over the value heads of a key head in order.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct GatedDeltaRuleParams {
  int64_t rows = 1;
  int64_t tokens = 0;
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t chunk = 64;
  [[nodiscard]] int64_t chunks() const { return (tokens + chunk - 1) / chunk; }
};
using GatedDeltaRuleForward = void(Queue& queue, const GatedDeltaRuleParams& params, ConstView q, ConstView k,
                                   ConstView v, ConstView beta, ConstView g, ConstView segments,
                                   ConstView initial_state, ConstView initial_segment, View o,
                                   View final_state, View chunk_states);
using GatedDeltaRuleBackward = void(Queue& queue, const GatedDeltaRuleParams& params, ConstView d_o,
                                    ConstView d_final_state, ConstView q, ConstView k, ConstView v,
                                    ConstView beta, ConstView g, ConstView segments, ConstView initial_state,
                                    ConstView initial_segment, ConstView chunk_states, View dq, View dk,
                                    View dv, View dbeta, View dg, View d_initial_state, View scratch);
// Elements of `scratch`: dq and dk per value head before they are summed over the heads of a key head.
[[nodiscard]] inline int64_t gated_delta_rule_backward_scratch(const GatedDeltaRuleParams& p) {
  return p.rows * p.tokens * p.value_heads * p.key_dim * 2;
}

// Entry checks shared by the implementations: shapes, one float type, heads, optional arguments that belong together.
void check_gated_delta_rule_forward(const GatedDeltaRuleParams& params, ConstView q, ConstView k, ConstView v,
                                    ConstView beta, ConstView g, ConstView segments, ConstView initial_state,
                                    ConstView initial_segment, ConstView o, ConstView final_state,
                                    ConstView chunk_states);
void check_gated_delta_rule_backward(const GatedDeltaRuleParams& params, ConstView d_o,
                                     ConstView d_final_state, ConstView q, ConstView k, ConstView v,
                                     ConstView beta, ConstView g, ConstView segments, ConstView initial_state,
                                     ConstView initial_segment, ConstView chunk_states, ConstView dq,
                                     ConstView dk, ConstView dv, ConstView dbeta, ConstView dg,
                                     ConstView d_initial_state, ConstView scratch);
// The tiles of the chunked form fit the workspace of a thread (chunk 128 with 256 key and value dimensions does).
void check_gated_delta_rule_tiles(const GatedDeltaRuleParams& params);

}  // namespace lathe
