// The GRPO loss on per-token values: a pure function on host spans, in f64. Masks select, they never
// multiply: what stands at an unscored position (NaN, infinity) cannot reach the loss, the gradient or a
// metric. It returns sums and denominators; the engine divides once per optimizer step.
//
// Per token, with M = scored, of a sequence that is kept, and live, old and advantage finite:
//   r = clip(live - old, -20, 20); gspo-token: the sequence's mean r by value, each token's own by gradient,
//       at most 10
//   l = max(-A exp r, -A clip(exp r, 1 - epsilon, 1 + epsilon_high)); at most -epsilon_c A where A < 0
//   l *= w, a constant: seq-mask-tis exp d where the sequence's exp(mean d) is in the band, else 0;
//       sampler_is token min(exp d, threshold); 0 where there is no rollout log-prob
//   sum = agg(l) + beta agg(KL(live, reference)) - entropy_coef agg(entropy)
// agg: token-mean and the two sums add up tokens, sequence-mean-token-mean takes a sequence's mean,
// token-scale divides by the norm. Dropped sequences (overlong, error gate) leave the denominator too; those
// outside the band stay in it. The gradient holds masks, gates, weights, old, reference and rollout log-probs
// constant.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lathe/grpo/config.h"
#include "lathe/grpo/loss_stats.h"

namespace lathe {

// n tokens in any order; sequence[i] in [0, sequences), or -1 for a token of no sequence (padding).
struct LossInputs {
  std::span<const double> logprobs;   // [n] live, p
  std::span<const double> entropy;    // [n] or empty
  std::span<const double> advantage;  // [n]
  std::span<const uint8_t> mask;      // [n] 1 = scored
  std::span<const int32_t> sequence;  // [n]
  int64_t sequences = 0;
  std::span<const double> old_logprobs;  // [n] or empty: ratio exactly 1
  std::span<const double> ref_logprobs;  // [n] or empty
  std::span<const double>
      rollout_logprobs;               // [n] or empty; not finite = none; replaces old with use_rollout_logps
  std::span<const uint8_t> overlong;  // [sequences] or empty
};

struct LossResult {
  double sum = 0;    // numerator: policy + beta KL - entropy_coef entropy
  double denom = 0;  // of this call; the step's denominator is their sum (sum-norm: the norm, once per step)
  std::vector<double> dlogprobs;   // d sum / d logprobs, [n]; 0 where not in the loss
  std::vector<double> dentropy;    // d sum / d entropy, [n]; empty when entropy_coef is 0
  std::vector<uint8_t> loss_mask;  // M, [n]
  LossStats stats;
};

// Expects what check_grpo_config and the data checks assure: reference log-probs where beta is not 0, rollout
// log-probs where config.needs_rollout_logprobs(), entropy where entropy_coef is not 0, overlong where it is
// masked.
[[nodiscard]] LossResult grpo_loss(const GrpoConfig& config, const LossInputs& inputs);

// What the step divides by, from the summed denominators of its micro-batches: the sum, or the norm for
// sequence-mean-token-sum-norm with a norm. 0 means: skip the step. active_sequences:
// LossStats::active_sequences.
[[nodiscard]] double step_denominator(const GrpoConfig& config, double summed_denominators,
                                      double active_sequences);

}  // namespace lathe
