// The experts of a MoE layer over the ring of ranks context x expert, each of which holds a run of ceil(E / ranks) experts.
// Per chunk of a rank's tokens (moe.token_chunks; the same run of positions of each of its rows):
//   gather the chunk's tokens, choices and weights over the ring; sort the slots that choose an expert of this rank
//   (kernels/moe_dispatch.h); grouped SwiGLU; weighted sum per token of what this rank's experts say; add the sums up over
//   the ring, each rank keeping its own tokens.
// Backward gathers the cotangents of the sums and adds up those of tokens and weights. With moe.chunk_pipeline the next
// chunk is gathered and the last one's sums travel while a chunk computes; the bits are the same. On one rank the chunk is all
// tokens, and nothing is moved.
//
// Rows per chunk: capacity = floor(tokens of a rank * top_k * moe.ragged_buffer_factor); factor <= 0: room for every slot that
// can come (dropless). More than that overflows: the last in (expert, token, slot) order are dropped: they add nothing to the
// sum, whose other weights stay, and get no gradient.
#pragma once

#include <span>

#include "lathe/model/decoder.h"

namespace lathe {

// Rows of the buffer of a rank with `experts_here` experts, for a chunk of `chunk_tokens` tokens of each of `ranks` ranks.
[[nodiscard]] int64_t expert_buffer_rows(int64_t chunk_tokens, int64_t top_k, int64_t ranks,
                                         int64_t experts_here, double factor);

// x: [tokens, hidden]; saved holds the router's choices and weights; out: [tokens, hidden], overwritten, or empty where only
// what backward needs is wanted.
void experts_forward(ModelContext& context, const GatheredWeights& weights, ConstView x, MoeSaved& saved,
                     View out);
// dx: [tokens, hidden] and d_weight: [tokens, top_k], overwritten. Frees what it used of `saved`.
void experts_backward(ModelContext& context, const GatheredWeights& weights, int layer, MoeSaved& saved,
                      ConstView dy, View dx, View d_weight);
// counts[e] += tokens that expert e of this rank took, counts[experts] += slots that were dropped here.
void add_expert_counts(ModelContext& context, const MoeSaved& saved, std::span<int64_t> counts);

}  // namespace lathe
