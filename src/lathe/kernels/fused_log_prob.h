// Log-probabilities of targets and entropies straight from hidden states, over tiles of the vocabulary that stay in a core's
// cache: logits = hidden table^T are never stored whole. Values and cotangents are those of log_prob.h.
// hidden: [n, dim]; table: [vocab, dim], f32 or bf16; targets: i32 [n] in [0, vocab); temperature: [n] >= 0, 0 meaning 1; logp, entropy: [n];
// stats: [n, 2] = (m, sum exp(z - m)).
// Forward, online log-sum-exp (Milakov and Gimelshein 2018): tiles are taken in groups of fixed size, a group's
// (max, sum, weighted sum) are merged in order.
// Backward makes each tile's cotangent once and feeds both products with it: dhidden = dlogits table (overwritten),
// dtable (+)= dlogits^T hidden (absent: frozen, skipped).
// kept: [n, vocab] elements that forward fills for backward, in an order of its own, or absent: backward makes the logits
// again. With it the four products are three.
// scratch: fused_log_prob_scratch elements, for both. Results do not depend on threads, nor beyond rounding on tiles.
#pragma once

#include <algorithm>

#include "lathe/core/dtype.h"
#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct FusedLogProbParams {
  DType compute = DType::kF32;  // of the products, as in matmul.h
  bool accumulate = true;       // dtable is added to, else overwritten
};

using FusedLogProbForward = void(Queue& queue, const FusedLogProbParams& params, ConstView hidden,
                                 ConstView table, ConstView targets, ConstView temperature, View logp,
                                 View entropy, View stats, View kept, View scratch);
using FusedLogProbBackward = void(Queue& queue, const FusedLogProbParams& params, ConstView dlogp,
                                  ConstView dentropy, ConstView hidden, ConstView table, ConstView targets,
                                  ConstView temperature, ConstView entropy, ConstView stats, View kept,
                                  View dhidden, View dtable, View scratch);

// Tokens, and rows of the table, of a tile; groups that the tiles of a table are shared out to.
inline constexpr int64_t kHeadTileTokens = 512;
inline constexpr int64_t kHeadTileVocab = 1024;
inline constexpr int64_t kHeadGroups = 16;

// Statistics per token and group forward, hidden gradients of a block of tokens per group backward; hidden states in bf16.
[[nodiscard]] inline int64_t fused_log_prob_scratch(int64_t tokens, int64_t dim, DType compute) {
  const int64_t rounded = compute == DType::kBF16 ? (tokens * dim + 1) / 2 : 0;
  return kHeadGroups * std::max(4 * tokens, std::min(tokens, kHeadTileTokens) * dim) + rounded;
}

}  // namespace lathe
