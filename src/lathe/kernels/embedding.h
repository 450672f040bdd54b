// Embedding: x[t, :] = table[ids[t], :].
// ids: i32 [tokens], each in [0, vocab); table, dtable: [vocab, dim]; x, dx: [tokens, dim].
// table is f32, f64 or bf16; x is f32 (f64 with an f64 table). Backward accumulates into dtable (f32/f64) in token order.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

using EmbeddingForward = void(Queue& queue, ConstView ids, ConstView table, View x);
using EmbeddingBackward = void(Queue& queue, ConstView dx, ConstView ids, View dtable);

}  // namespace lathe
