// Log-probabilities and entropies of targets from hidden states: logits = hidden table^T, then kernels/log_prob.h. The logits
// of all tokens never exist at once. Two programs:
//   chunked  takes `chunk` tokens at a time over the whole vocabulary, and makes the logits again in backward;
//   fused    takes tiles of tokens and words that stay in cache (kernels/fused_log_prob.h), and makes them again too.
// Both keep (m, sum exp(z - m)), 8 bytes a token; results do not depend on chunks or tiles beyond rounding.
// known_cotangent.h has the variant that makes the logits once.
#pragma once

#include <cstdint>

#include "lathe/core/memory.h"
#include "lathe/core/view.h"
#include "lathe/kernels/device.h"

namespace lathe {

enum class HeadMode : uint8_t { kChunked, kFused };

struct HeadParams {
  HeadMode mode = HeadMode::kFused;
  int64_t chunk = 1024;         // of kChunked: tokens, at least 1
  DType compute = DType::kF32;  // of the three products, as in kernels/matmul.h
};

// What score leaves for score_backward, 8 bytes a token beside its results.
struct HeadSaved {
  Tensor stats;  // [n, 2]
};

// hidden: [n, dim], normed and gathered at the scored positions; table: [vocab, dim], f32 or bf16; targets:
// i32 [n] in [0, vocab); temperature: [n] > 0; logp, entropy: [n]. n may be 0. `saved` is allocated here.
void score(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
           ConstView targets, ConstView temperature, View logp, View entropy, HeadSaved& saved);

// dlogp: [n]; dentropy: [n] or absent; dhidden: [n, dim], overwritten; dtable: [vocab, dim], added to if
// `accumulate`, else overwritten; or absent: the table is frozen and that product is left out. A token whose cotangents are 0 gives zeros
// whatever its logits are.
void score_backward(const Device& device, const HeadParams& params, ConstView dlogp, ConstView dentropy,
                    ConstView hidden, ConstView table, ConstView targets, ConstView temperature,
                    ConstView entropy, const HeadSaved& saved, View dhidden, View dtable, bool accumulate);

}  // namespace lathe
