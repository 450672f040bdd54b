// Attention over whole rows from a shard of them. Keys and values of the row are gathered over the context ranks. A rank
// attends for its own queries, or (context_balance) for a half shard early in the row and one late in it, whose queries
// come to it and whose outputs go back; in backward their gradients take the same way. Gradients of keys and values are
// summed over the ranks that saw them. On one rank nothing is exchanged or copied.
#pragma once

#include "lathe/model/decoder.h"

namespace lathe {

// From saved.q, saved.k, saved.v: saved.o [tokens, heads, head_dim], and what backward needs.
void context_attention_forward(ModelContext& context, const BatchView& batch, AttentionSaved& saved);
// dq [tokens, heads, head_dim], dk, dv [tokens, kv_heads, head_dim] of the shard are overwritten. Frees what it used.
void context_attention_backward(ModelContext& context, const BatchView& batch, AttentionSaved& saved,
                                ConstView d_o, View dq, View dk, View dv);

}  // namespace lathe
