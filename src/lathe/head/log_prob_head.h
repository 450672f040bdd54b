// Log-probabilities and entropies of targets from hidden states: logits = hidden table^T, then kernels/log_prob.h. The logits
// of all tokens never exist at once. Three programs:
//   chunked  the baseline: takes `chunk` tokens at a time over the whole vocabulary, and makes the logits again in backward.
//            The engine calls it chunk by chunk, and gathers the table and hands its gradient over for each;
//   local    the same over a table that is gathered once, before forward, and kept for backward;
//   fused    local over tiles of tokens and words that stay in cache (kernels/fused_log_prob.h).
// All keep (m, sum exp(z - m)), 8 bytes a token, add the table's gradient up in the float type of the device, never in bf16,
// and leave its reduction over ranks to the caller. Results do not depend on chunks or tiles beyond rounding.
// known_cotangent.h has the variant of fused that makes the logits once.
// Rows are scored tokens of this rank, each with its target. The shift by one token is the caller's: under context parallelism
// the target of a shard's last position lies with the right neighbour.
#pragma once

#include <cstdint>
#include <string>

#include "lathe/core/memory.h"
#include "lathe/core/view.h"
#include "lathe/kernels/device.h"

namespace lathe {

enum class HeadMode : uint8_t { kChunked, kLocal, kFused };
// As head.mode writes it; an internal error for other words.
[[nodiscard]] HeadMode head_mode_of(const std::string& word);
[[nodiscard]] const char* head_mode_name(HeadMode mode);

struct HeadParams {
  HeadMode mode = HeadMode::kFused;
  int64_t chunk = 1024;         // of kChunked and kLocal: tokens, at least 1
  DType compute = DType::kF32;  // of the three products, as in kernels/matmul.h
};

// What score leaves for score_backward, 8 bytes a token beside its results.
struct HeadSaved {
  Tensor stats;  // [n, 2]
};

// table: [vocab, dim], f32 or bf16. hidden: [n, dim], normed and gathered at the scored positions, in row order; targets: i32 [n] in [0, vocab), looked at
// before anything is computed (an id outside is an internal error: the data is checked where it is read); temperature: [n] >= 0,
// 0 meaning 1 (greedy sampling; rollout files with it are refused); logp, entropy: [n]. n may be 0. `saved` is allocated here.
void score(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
           ConstView targets, ConstView temperature, View logp, View entropy, HeadSaved& saved);

// stats: what score left for these tokens, all arguments are of the same ones; dlogp: [n]; dentropy: [n] or absent; dhidden: [n, dim], overwritten; dtable: [vocab, dim], added to if
// `accumulate`, else overwritten; or absent: the table is frozen and that product is left out. A token whose cotangents are 0 gives zeros
// whatever its logits are.
void score_backward(const Device& device, const HeadParams& params, ConstView dlogp, ConstView dentropy,
                    ConstView hidden, ConstView table, ConstView targets, ConstView temperature,
                    ConstView entropy, ConstView stats, View dhidden, View dtable, bool accumulate);

// An internal error for a target outside [0, vocab).
void check_head_targets(const Device& device, ConstView targets, int64_t vocab);

}  // namespace lathe
