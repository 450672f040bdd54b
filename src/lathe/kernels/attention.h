// Causal, segment-aware grouped-query attention; never stores [tokens, tokens].
// o_i = sum_j P_ij v_j, P = softmax_j(scale <q_i, k_j>) over keys j with key index <= q_offset + i of the same row and the
// same non-zero segment. A query of segment 0 (padding) gives 0 and lse 0. Query head h reads key head h / (q_heads / kv_heads).
// q, o: [rows * q_tokens, q_heads, head_dim]; k, v: [rows * kv_tokens, kv_heads, head_dim];
// q_segments: i32 [rows * q_tokens]; kv_segments: i32 [rows * kv_tokens]; lse: [rows * q_tokens, q_heads].
// Keys of a carried prefix come first in a row of k and v: query i sits at key index q_offset + i
// (plain training: q_offset = 0, kv_tokens = q_tokens). Values are contiguous per segment within a row.
// Backward (Dao 2023): delta_i = <do_i, o_i>, P from lse, dS = P (do.v - delta), dq = scale dS k, dk = scale dS^T q,
// dv = P^T do; all three are overwritten, the prefix's part of dk and dv included.
// Tiles of kAttentionTile queries by kAttentionTile keys that causality or segments empty are skipped.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct AttentionParams {
  int64_t rows = 1;
  int64_t q_tokens = 0;
  int64_t kv_tokens = 0;
  int64_t q_offset = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double scale = 1;
};
inline constexpr int64_t kAttentionTile = 64;
using AttentionForward = void(Queue& queue, const AttentionParams& params, ConstView q, ConstView k,
                              ConstView v, ConstView q_segments, ConstView kv_segments, View o, View lse);
using AttentionBackward = void(Queue& queue, const AttentionParams& params, ConstView d_o, ConstView q,
                               ConstView k, ConstView v, ConstView q_segments, ConstView kv_segments,
                               ConstView o, ConstView lse, View dq, View dk, View dv, View scratch);
// Elements of `scratch`: delta.
[[nodiscard]] inline int64_t attention_backward_scratch(const AttentionParams& p) {
  return p.rows * p.q_tokens * p.q_heads;
}

}  // namespace lathe
