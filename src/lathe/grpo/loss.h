// The GRPO loss on per-token values: a pure function on host spans, in f64. Masks select, they never multiply: what
// stands at an unscored position (NaN, infinity) cannot reach the loss, the gradient or a metric.
// It returns sums and denominators; the engine divides once per optimizer step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lathe/grpo/config.h"

namespace lathe {

// n tokens in any order; sequence[i] in [0, sequences), or -1 for a token of no sequence (padding).
struct LossInputs {
  std::span<const double> logprobs;          // [n] live, p
  std::span<const double> entropy;           // [n] or empty
  std::span<const double> advantage;         // [n]
  std::span<const uint8_t> mask;             // [n] 1 = scored
  std::span<const int32_t> sequence;         // [n]
  int64_t sequences = 0;
  std::span<const double> old_logprobs;      // [n] or empty: ratio exactly 1
  std::span<const double> ref_logprobs;      // [n] or empty
  std::span<const double> rollout_logprobs;  // [n] or empty; not finite = none
  std::span<const uint8_t> overlong;         // [sequences] or empty
};

// Sums over the tokens and sequences of this call; add() pools micro-batches and ranks, ratios are taken at the end.
struct LossStats {
  double token_denom = 0;     // scored tokens that stay (sum of M)
  double clip_num = 0;
  double clip_lower_num = 0;
  double ppo_kl_num = 0;      // sum of old - live
  double kl_num = 0;          // sum of the per-token KL to the reference
  double kl_loss_sum = 0;     // aggregated like the loss
  double pg_sum = 0;          // policy term alone
  double entropy_sum = 0;
  double entropy_denom = 0;
  double kept = 0;            // sequences with a scored token that stay in the loss
  double sequences = 0;       // sequences with a scored token
  double tis_outside = 0;     // sequences outside the band, of tis_counted
  double tis_counted = 0;
  double weight_capped = 0;   // scored tokens whose weight was capped or set to 0
  double scored_tokens = 0;   // sum of the mask
  double mismatch_tokens = 0; // scored tokens with a finite rollout log-prob
  double mismatch_kl_sum = 0; // exp(d) - d - 1
  double mismatch_abs_sum = 0;
  double mismatch_prob_error_sum = 0;  // exp |d|
  double advantage_abs_sum = 0;        // over tokens that stay
  double ratio_sum = 0;
  double ratio_max;                    // -inf when nothing is scored
  double ratio_min;                    // +inf
  double mismatch_abs_max;             // -inf
  // Further per-step statistics of spec section 2.7 are added here with their pooling.
  LossStats();
  void add(const LossStats& other);
};

struct LossResult {
  double sum = 0;    // numerator: policy + beta KL - entropy_coef entropy
  double denom = 0;  // of this call; the step's denominator is their sum (sum-norm: the norm, once per step)
  std::vector<double> dlogprobs;  // d sum / d logprobs, [n]; 0 where not in the loss
  std::vector<double> dentropy;   // d sum / d entropy, [n]; empty when entropy_coef is 0
  std::vector<uint8_t> loss_mask;  // M, [n]
  LossStats stats;
};

[[nodiscard]] LossResult grpo_loss(const GrpoConfig& config, const LossInputs& inputs);

// What the step divides by, from the summed denominators of its micro-batches: the sum, or the norm for
// sequence-mean-token-sum-norm with a norm. 0 means: skip the step.
[[nodiscard]] double step_denominator(const GrpoConfig& config, double summed_denominators, double active_sequences);

}  // namespace lathe
