// The gated delta rule mixer on a shard of the rows: what crosses the borders between shards.
// Forward: the convolution needs the last taps - 1 inputs of the shard before; the rule needs the state behind it, which
// every rank finds by composing the summaries of all shards before its own (gated_delta_rule_summary.h).
// Backward: gradients of the state come from the shards behind in the same way, those of the convolution's inputs from the
// next shard alone.
#pragma once

#include "lathe/model/decoder.h"

namespace lathe {

// The gradient of the inputs before a shard, on its way to the rank that holds them.
struct TailGradient {
  Tensor sent, received;
  Request request;
};

// saved.conv_tail [rows, taps - 1, channels] from the rank before; begins at once, wait before it is read.
[[nodiscard]] Request start_conv_tail(ModelContext& context, const BatchView& batch, DeltaSaved& saved);
// d_tail: of saved.conv_tail (absent on the first rank).
[[nodiscard]] TailGradient start_tail_gradient(ModelContext& context, const BatchView& batch, Tensor d_tail);
// Waits, then adds what came from the next rank to the last rows of d_inputs [tokens, channels].
void finish_tail_gradient(ModelContext& context, const BatchView& batch, TailGradient& tail, View d_inputs);

// saved.initial_state, from saved.k, saved.v, saved.beta, saved.g of all ranks; stays absent on the first rank.
void exchange_states(ModelContext& context, const BatchView& batch, const GatedDeltaRuleParams& params,
                     DeltaSaved& saved);
// The gradient of the state behind the shard; absent on the last rank.
[[nodiscard]] Tensor exchange_state_gradients(ModelContext& context, const BatchView& batch,
                                              const GatedDeltaRuleParams& params, const DeltaSaved& saved,
                                              ConstView d_o);

}  // namespace lathe
