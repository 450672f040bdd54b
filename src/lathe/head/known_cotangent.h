// The head when each token's cotangent depends on its own log-prob and on what was known before: the logits of a block of
// tokens are made once, their log-probs, the loss and both gradients follow at once: three products instead of four, and
// nothing is kept for a backward pass.
#pragma once

#include <functional>

#include "lathe/head/log_prob_head.h"

namespace lathe {

// Given a block's log-probs and entropies [count] (tokens from `begin` on), fills their cotangents; d_entropy may be absent.
using TokenCotangents =
    std::function<void(int64_t begin, ConstView logp, ConstView entropy, View d_logp, View d_entropy)>;

// Tokens of a block: as many as hold the logits within 224 MiB, but 64 at least, and a tile's at most.
[[nodiscard]] int64_t known_cotangent_block(int64_t vocab, DType type);

// Arguments as those of score and score_backward. with_entropy: the callback gives cotangents of the entropies too.
void score_known(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
                 ConstView targets, ConstView temperature, const TokenCotangents& cotangents,
                 bool with_entropy, View logp, View entropy, View dhidden, View dtable, bool accumulate);

// True if all logits, over temperatures of at least `lowest_temperature`, are finite by the size of hidden states and table,
// so that every log-prob is too. False says nothing.
[[nodiscard]] bool logits_are_finite(const Device& device, ConstView hidden, ConstView table,
                                     double lowest_temperature);

}  // namespace lathe
