// Mixture-of-experts router: p = softmax(logits) over all experts (max-subtracted), the top_k largest p (ties: lowest
// index), weight = p, divided by the sum over the selected if norm_topk.
// logits, dlogits: [tokens, experts]; expert: i32 [tokens, top_k]; weight, dweight: [tokens, top_k].
// segments: i32 [tokens] or absent; tokens of segment 0 are not routed: expert -1, weight 0.
// forced: i32 [tokens, top_k] or absent; a token whose forced experts are all in range and distinct takes those in that
// order, any other row uses the router (replay, and recomputation: choices are kept, never recomputed).
// Backward, norm_topk: dl_e = w_e (dw_e - sum_f w_f dw_f) on the selected, 0 elsewhere; else dl_j = p_j ([j selected]
// dw_j - sum_f p_f dw_f) for all j. Tokens with expert -1 get 0.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct RouterParams {
  int64_t experts = 0;
  int64_t top_k = 0;
  bool norm_topk = true;
};
using RouterForward = void(Queue& queue, const RouterParams& params, ConstView logits, ConstView segments,
                           ConstView forced, View expert, View weight);
using RouterBackward = void(Queue& queue, const RouterParams& params, ConstView dweight, ConstView logits,
                            ConstView expert, View dlogits);

}  // namespace lathe
