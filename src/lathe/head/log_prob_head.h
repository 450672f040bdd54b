// Log-probabilities and entropies of targets from hidden states: logits = hidden table^T, then
// kernels/log_prob.h. The logits of all tokens never exist at once: the `chunked` way here takes `chunk`
// tokens at a time, keeps (m, sum exp(z - m)) and the entropy per token, and makes the logits again in
// backward. Results do not depend on the chunk beyond rounding.
#pragma once

#include <cstdint>

#include "lathe/core/memory.h"
#include "lathe/core/view.h"
#include "lathe/kernels/device.h"

namespace lathe {

struct HeadParams {
  int64_t chunk = 1024;         // tokens, at least 1
  DType compute = DType::kF32;  // of the three products, as in kernels/matmul.h
};

// What score leaves for score_backward, 12 bytes a token; the entropy is also a result.
struct HeadSaved {
  Tensor stats;    // [n, 2]
  Tensor entropy;  // [n]
};

// hidden: [n, dim], normed and gathered at the scored positions; table: [vocab, dim], f32 or bf16; targets:
// i32 [n] in [0, vocab); temperature: [n] > 0; logp: [n]. n may be 0. `saved` is allocated here.
void score(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
           ConstView targets, ConstView temperature, View logp, HeadSaved& saved);

// dlogp: [n]; dentropy: [n] or absent; dhidden: [n, dim], overwritten; dtable: [vocab, dim], added to, or
// absent: the table is frozen and that product is left out. A token whose cotangents are 0 gives zeros
// whatever its logits are.
void score_backward(const Device& device, const HeadParams& params, ConstView dlogp, ConstView dentropy,
                    ConstView hidden, ConstView table, ConstView targets, ConstView temperature,
                    const HeadSaved& saved, View dhidden, View dtable);

}  // namespace lathe
