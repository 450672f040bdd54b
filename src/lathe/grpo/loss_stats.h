// Statistics of the GRPO loss: sums and extremes over the tokens and sequences of one call. add() pools
// micro-batches and ranks; ratios are taken once, in loss_metrics. Extremes start at the neutral element of
// their reduction, so a call without tokens leaves pooled values as they were.
//
// Words: scored = completion_mask 1; in the loss = scored, of a sequence that the gates keep, and finite; gap
// d = live - rollout log-prob over scored tokens where both are finite; band = truncated importance sampling.
#pragma once

#include <array>
#include <map>
#include <string>

#include "lathe/grpo/config.h"

namespace lathe {

struct LossStats {
  double token_denom = 0;       // tokens in the loss (sum of M)
  double nonfinite_tokens = 0;  // kept but for a log-prob or advantage that is not finite: not in the loss
  double active_sequences = 0;  // sequences with a token in the loss
  double clip_num = 0;          // tokens whose clipped term is the larger one
  double clip_low_num = 0;      // those with a negative advantage (ratio below 1 - epsilon)
  double clip_lower_num = 0;    // tokens at the dual clip
  double ppo_kl_num = 0;        // sum of old - live
  double kl_num = 0;            // sum of the per-token KL to the reference
  double kl_loss_sum = 0;       // aggregated like the loss
  double pg_sum = 0;            // policy term alone
  double entropy_sum = 0;       // aggregated like the loss
  double kept = 0;              // sequences with a scored token that the gates keep
  double sequences = 0;         // sequences with a scored token
  double tis_outside = 0;       // kept sequences outside the band, of tis_counted
  double tis_counted = 0;
  double weight_capped = 0;      // scored tokens whose weight was capped or set to 0
  double weight_sum = 0;         // over tokens in the loss; 1 each without weights
  double scored_tokens = 0;      // sum of the mask
  double advantage_abs_sum = 0;  // over tokens in the loss, as the next ones
  double advantage_nonzero = 0;  // |A| > 1e-8
  double ratio_sum = 0;
  double log_ratio_abs_sum = 0;
  double unclipped_sum = 0;  // -A ratio
  double clipped_sum = 0;    // -A clip(ratio)
  double seq_error_sum = 0;  // mean of exp |d| per sequence, where finite; error gate only
  double seq_error_count = 0;
  double mismatch_tokens = 0;          // tokens with a gap
  double mismatch_kl_sum = 0;          // exp(d) - d - 1, d clipped to +-20
  double mismatch_sum = 0;             // d
  double mismatch_abs_sum = 0;         // |d|
  double mismatch_prob_error_sum = 0;  // exp |d|, |d| clipped to 20
  double mismatch_ratio_sum = 0;       // exp d, d clipped to +-20
  double mismatch_outliers = 0;        // |d| > 10
  double seq_ratio_sum = 0;            // exp of a sequence's mean gap
  double seq_ratio_count = 0;
  double ratio_max;  // -inf when nothing is in the loss
  double ratio_min;  // +inf
  double advantage_max;
  double advantage_min;
  double weight_min;
  double mismatch_abs_max;  // -inf
  double mismatch_ratio_max;
  double mismatch_ratio_min;
  double seq_ratio_max;
  double seq_ratio_min;
  double seq_error_max;

  // Where the gaps are: by size, by position among the sequence's scored tokens, by the sampler's log-prob.
  static constexpr std::array<double, 14> kGapEdges = {-10, -5,  -2, -1, -.5, -.2, -.05,
                                                       0,   .05, .2, .5, 1,   2,   5};
  static constexpr std::array<double, 3> kConfidenceEdges = {-1, -.1, -.01};
  std::array<double, 15> gap_count{};
  std::array<double, 15> gap_sum{};
  std::array<double, 8> position_count{};
  std::array<double, 8> position_sum{};
  std::array<double, 8> position_abs_sum{};
  std::array<double, 4> confidence_count{};
  std::array<double, 4> confidence_sum{};

  LossStats();
  void add(const LossStats& other);
};

// The same as numbers in a row: to exchange them and to keep them.
using LossStatsNumbers = std::array<double, sizeof(LossStats) / sizeof(double)>;

// Metrics of one optimizer step from its pooled statistics and its denominator (step_denominator). Nothing
// divides by 0: without tokens differences are 0, ratios and weights 1.
//   policy/loss                    objective / denominator (policy + beta KL - entropy_coef entropy)
//   policy/pg_loss, kl_loss, entropy   the three terms / denominator
//   policy/clip_frac               tokens with a binding clip / tokens in the loss; _low, _high split it by side
//   policy/clip_frac_dual          tokens at the dual clip / tokens in the loss
//   policy/approx_kl               mean of old - live
//   policy/ref_kl                  mean KL to the reference
//   policy/ratio_mean, _max, _min; policy/log_ratio_abs_mean; policy/unclipped_mean, clipped_mean
//   policy/active_sequences        sequences with a token in the loss
//   adv/abs_mean, max, min, nonzero_frac   over tokens in the loss
//   mismatch/kl, abs_mean, prob_error      means of exp(d) - d - 1, |d|, exp |d|
//   mismatch/clipped_frac          scored tokens whose weight was capped or set to 0 / scored tokens
//   mismatch/kept_frac             sequences the gates keep / sequences with a scored token
//   mismatch/tokens, mean, abs_max         tokens with a gap; mean d; largest |d|
//   mismatch/ratio_mean, _max, _min        exp d
//   mismatch/outlier_frac, outliers_per_seq    |d| > 10
//   mismatch/seq_ratio_mean, _max, _min    exp of a sequence's mean d
//   mismatch/seq_error_mean, _max  the error gate's mean of exp |d| per sequence
//   mismatch/outside_band_frac     kept sequences outside the band
//   mismatch/weight_mean, _min     weights over tokens in the loss
//   mismatch/scored_tokens_per_seq
// and, when there is a gap, mismatch/hist_frac/i and hist_mass/i (15 bins of d, masses add up to mismatch/mean),
// pos_signed/i and pos_absmean/i (8 parts of a sequence), conf_signed/i and conf_frac/i (4 bins).
[[nodiscard]] std::map<std::string, double> loss_metrics(const GrpoConfig& config, const LossStats& stats,
                                                         double denominator);

}  // namespace lathe
