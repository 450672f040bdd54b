// What a contiguous shard of a row does to the state of the gated delta rule (gated_delta_rule.h) that enters it, so that
// ranks which hold neighbouring shards can run the rule as one. Per row and value head, with the token maps
//   S_t = e^{g_t} (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T
// composed over the shard:
//   final_state = transition S_in + state;     d_initial_state = transition^T d_final_state + d_state.
// entering_segment i32 [rows]: segment of the last token before the shard that is not padding (0: none). Segment ids are
// unique within the whole row. A shard that starts another segment or holds a segment's end has transition 0, and only
// the tokens of its last segment enter `state`; a shard of padding hands the state on (transition I, state 0). Elements of
// a transition below 1e-30 may be 0: what has decayed so far adds nothing to a state. In d_state
// only the tokens of the first segment count, if it is the entering one.
//
// transition [rows, value_heads, key_dim, key_dim] (may be absent: not computed); state, d_state [rows, value_heads,
// key_dim, value_dim]; all overwritten. Shapes of the inputs as in gated_delta_rule.h.
// Fold: composes the shards that come before (forward) or after (backward) a shard, in the order of their ranks:
//   forward:  S = 0; for shard 0 .. count - 1:  S <- transition S + state
//   backward: S = 0; for shard count - 1 .. 0:  S <- transition^T S + state
// transitions [count, rows * value_heads, key_dim, key_dim], states [count, rows * value_heads, key_dim, value_dim], result
// [rows, value_heads, key_dim, value_dim], overwritten. The transition of the shard that comes first in the fold is not
// read, and transitions may be absent for count <= 1; a transition of zeros is not multiplied with: nothing passes it,
// infinities included. count 0 gives zeros.
#pragma once

#include "lathe/kernels/gated_delta_rule.h"

namespace lathe {

using GatedDeltaRuleSummary = void(Queue& queue, const GatedDeltaRuleParams& params, ConstView k, ConstView v,
                                   ConstView beta, ConstView g, ConstView segments,
                                   ConstView entering_segment, View transition, View state);
using GatedDeltaRuleAdjointSummary = void(Queue& queue, const GatedDeltaRuleParams& params, ConstView d_o,
                                          ConstView q, ConstView k, ConstView beta, ConstView g,
                                          ConstView segments, ConstView entering_segment, View d_state);
struct GatedDeltaRuleFoldParams {
  int64_t rows = 1;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t count = 0;      // shards
  bool backward = false;  // from the last shard to the first, transitions transposed
};
using GatedDeltaRuleFold = void(Queue& queue, const GatedDeltaRuleFoldParams& params, ConstView transitions,
                                ConstView states, View result);

// Entry checks shared by the implementations.
void check_gated_delta_rule_summary(const GatedDeltaRuleParams& params, ConstView k, ConstView v,
                                    ConstView beta, ConstView g, ConstView segments,
                                    ConstView entering_segment, ConstView transition, ConstView state);
void check_gated_delta_rule_adjoint_summary(const GatedDeltaRuleParams& params, ConstView d_o, ConstView q,
                                            ConstView k, ConstView beta, ConstView g, ConstView segments,
                                            ConstView entering_segment, ConstView d_state);
void check_gated_delta_rule_fold(const GatedDeltaRuleFoldParams& params, ConstView transitions,
                                 ConstView states, ConstView result);

// Tokens [begin, end) of a row whose maps a summary composes.
struct DeltaSpan {
  int64_t begin = 0;
  int64_t end = 0;
  bool continues = false;  // they are of the entering segment, or all tokens of the shard are padding
};
// Of the forward summary: from the last segment's first token to the shard's end.
[[nodiscard]] DeltaSpan last_segment_span(const int32_t* segments, int64_t tokens, int32_t entering);
// Of the adjoint summary: the first segment's tokens if it continues, or none.
[[nodiscard]] DeltaSpan first_segment_span(const int32_t* segments, int64_t tokens, int32_t entering);

}  // namespace lathe
