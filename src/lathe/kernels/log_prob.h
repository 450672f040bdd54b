// Log-probability of a target and entropy from logits, with a temperature per token: z = logits / temperature,
//   lse = m + ln sum exp(z - m), m = max z (0 if not finite);  logp = z_target - lse;
//   entropy = lse - sum softmax(z) z, never below 0; NaN unless all logits are finite.
// logits: [tokens, vocab]; targets: i32 [tokens] in [0, vocab); temperature: [tokens] >= 0, 0 meaning 1; logp, entropy: [tokens];
// stats: [tokens, 2] = (m, sum exp(z - m)), what backward needs beside the logits.
// Backward, per token with cotangents dlogp and dentropy (absent = 0), p = softmax(z), H = entropy:
//   dlogits = (dlogp (onehot - p) - dentropy p (ln p + H)) / temperature. dlogits may be logits. A token whose cotangents are
// both 0 gets exact zeros whatever its logits are.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

using LogProbForward = void(Queue& queue, ConstView logits, ConstView targets, ConstView temperature,
                            View logp, View entropy, View stats);
using LogProbBackward = void(Queue& queue, ConstView dlogp, ConstView dentropy, ConstView logits,
                             ConstView targets, ConstView temperature, ConstView entropy, ConstView stats,
                             View dlogits);

}  // namespace lathe
