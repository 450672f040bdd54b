// Attention output gate: a = o sigmoid(gate), gate = second half of each head of q_proj [tokens, q_heads, 2 head_dim].
// o, a, da, d_o: [tokens, q_heads, head_dim]. Backward: d_o = da s; dgate = da o s (1 - s), written into the gate half of
// dq_proj [tokens, q_heads, 2 head_dim] (the query half is qk_norm_rope's).
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

using OutputGateForward = void(Queue& queue, ConstView o, ConstView q_proj, View a);
using OutputGateBackward = void(Queue& queue, ConstView da, ConstView o, ConstView q_proj, View d_o,
                                View dq_proj);

}  // namespace lathe
