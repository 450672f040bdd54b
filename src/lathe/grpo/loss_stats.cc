#include "lathe/grpo/loss_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace lathe {
namespace {

using Field = double LossStats::*;

constexpr Field kSums[] = {
    &LossStats::token_denom,
    &LossStats::nonfinite_tokens,
    &LossStats::active_sequences,
    &LossStats::clip_num,
    &LossStats::clip_low_num,
    &LossStats::clip_lower_num,
    &LossStats::ppo_kl_num,
    &LossStats::kl_num,
    &LossStats::kl_loss_sum,
    &LossStats::pg_sum,
    &LossStats::entropy_sum,
    &LossStats::kept,
    &LossStats::sequences,
    &LossStats::tis_outside,
    &LossStats::tis_counted,
    &LossStats::weight_capped,
    &LossStats::weight_sum,
    &LossStats::scored_tokens,
    &LossStats::advantage_abs_sum,
    &LossStats::advantage_nonzero,
    &LossStats::ratio_sum,
    &LossStats::log_ratio_abs_sum,
    &LossStats::unclipped_sum,
    &LossStats::clipped_sum,
    &LossStats::seq_error_sum,
    &LossStats::seq_error_count,
    &LossStats::mismatch_tokens,
    &LossStats::mismatch_kl_sum,
    &LossStats::mismatch_sum,
    &LossStats::mismatch_abs_sum,
    &LossStats::mismatch_prob_error_sum,
    &LossStats::mismatch_ratio_sum,
    &LossStats::mismatch_outliers,
    &LossStats::seq_ratio_sum,
    &LossStats::seq_ratio_count,
};
constexpr Field kMaxima[] = {&LossStats::ratio_max,        &LossStats::advantage_max,
                             &LossStats::mismatch_abs_max, &LossStats::mismatch_ratio_max,
                             &LossStats::seq_ratio_max,    &LossStats::seq_error_max};
constexpr Field kMinima[] = {&LossStats::ratio_min, &LossStats::advantage_min, &LossStats::weight_min,
                             &LossStats::mismatch_ratio_min, &LossStats::seq_ratio_min};

// Every field is in exactly one of the tables above or is one of the seven arrays.
static_assert(sizeof(LossStats) == sizeof(double) * (std::size(kSums) + std::size(kMaxima) +
                                                     std::size(kMinima) + 15 + 15 + 8 + 8 + 8 + 4 + 4));

template <size_t N>
void add_array(std::array<double, N>& into, const std::array<double, N>& from) {
  for (size_t i = 0; i < N; ++i) into[i] += from[i];
}

double ratio(double numerator, double denominator, double neutral = 0) {
  return denominator > 0 ? numerator / denominator : neutral;
}
double extreme(double value, double neutral) {
  return std::isinf(value) ? neutral : value;
}

using Metrics = std::map<std::string, double>;

void add_policy(const GrpoConfig& config, const LossStats& s, double denominator, Metrics& m) {
  const double objective = s.pg_sum + (config.beta != 0 ? config.beta * s.kl_loss_sum : 0.0) -
                           (config.entropy_coef != 0 ? config.entropy_coef * s.entropy_sum : 0.0);
  m["policy/loss"] = ratio(objective, denominator);
  m["policy/pg_loss"] = ratio(s.pg_sum, denominator);
  m["policy/kl_loss"] = ratio(s.kl_loss_sum, denominator);
  m["policy/entropy"] = ratio(s.entropy_sum, denominator);
  m["policy/clip_frac"] = ratio(s.clip_num, s.token_denom);
  m["policy/clip_frac_low"] = ratio(s.clip_low_num, s.token_denom);
  m["policy/clip_frac_high"] = ratio(s.clip_num - s.clip_low_num, s.token_denom);
  m["policy/clip_frac_dual"] = ratio(s.clip_lower_num, s.token_denom);
  m["policy/approx_kl"] = ratio(s.ppo_kl_num, s.token_denom);
  m["policy/ref_kl"] = ratio(s.kl_num, s.token_denom);
  m["policy/ratio_mean"] = ratio(s.ratio_sum, s.token_denom, 1);
  m["policy/ratio_max"] = extreme(s.ratio_max, 1);
  m["policy/ratio_min"] = extreme(s.ratio_min, 1);
  m["policy/log_ratio_abs_mean"] = ratio(s.log_ratio_abs_sum, s.token_denom);
  m["policy/unclipped_mean"] = ratio(s.unclipped_sum, s.token_denom);
  m["policy/clipped_mean"] = ratio(s.clipped_sum, s.token_denom);
  m["policy/active_sequences"] = s.active_sequences;
  m["policy/nonfinite_tokens"] = s.nonfinite_tokens;
  m["adv/abs_mean"] = ratio(s.advantage_abs_sum, s.token_denom);
  m["adv/max"] = extreme(s.advantage_max, 0);
  m["adv/min"] = extreme(s.advantage_min, 0);
  m["adv/nonzero_frac"] = ratio(s.advantage_nonzero, s.token_denom);
}

void add_mismatch(const LossStats& s, Metrics& m) {
  m["mismatch/kl"] = ratio(s.mismatch_kl_sum, s.mismatch_tokens);
  m["mismatch/abs_mean"] = ratio(s.mismatch_abs_sum, s.mismatch_tokens);
  m["mismatch/prob_error"] = ratio(s.mismatch_prob_error_sum, s.mismatch_tokens, 1);
  m["mismatch/clipped_frac"] = ratio(s.weight_capped, s.scored_tokens);
  m["mismatch/kept_frac"] = ratio(s.kept, s.sequences);
  m["mismatch/tokens"] = s.mismatch_tokens;
  m["mismatch/mean"] = ratio(s.mismatch_sum, s.mismatch_tokens);
  m["mismatch/abs_max"] = extreme(s.mismatch_abs_max, 0);
  m["mismatch/ratio_mean"] = ratio(s.mismatch_ratio_sum, s.mismatch_tokens, 1);
  m["mismatch/ratio_max"] = extreme(s.mismatch_ratio_max, 1);
  m["mismatch/ratio_min"] = extreme(s.mismatch_ratio_min, 1);
  m["mismatch/outlier_frac"] = ratio(s.mismatch_outliers, s.mismatch_tokens);
  m["mismatch/outliers_per_seq"] = ratio(s.mismatch_outliers, s.sequences);
  m["mismatch/seq_ratio_mean"] = ratio(s.seq_ratio_sum, s.seq_ratio_count, 1);
  m["mismatch/seq_ratio_max"] = extreme(s.seq_ratio_max, 1);
  m["mismatch/seq_ratio_min"] = extreme(s.seq_ratio_min, 1);
  m["mismatch/seq_error_mean"] = ratio(s.seq_error_sum, s.seq_error_count, 1);
  m["mismatch/seq_error_max"] = extreme(s.seq_error_max, 1);
  m["mismatch/outside_band_frac"] = ratio(s.tis_outside, s.tis_counted);
  m["mismatch/weight_mean"] = ratio(s.weight_sum, s.token_denom, 1);
  m["mismatch/weight_min"] = extreme(s.weight_min, 1);
  m["mismatch/scored_tokens_per_seq"] = ratio(s.scored_tokens, s.sequences);
}

void add_distributions(const LossStats& s, Metrics& m) {
  for (size_t i = 0; i < s.gap_count.size(); ++i) {
    m[fmt::format("mismatch/hist_frac/{}", i)] = ratio(s.gap_count[i], s.mismatch_tokens);
    m[fmt::format("mismatch/hist_mass/{}", i)] = ratio(s.gap_sum[i], s.mismatch_tokens);
  }
  for (size_t i = 0; i < s.position_count.size(); ++i) {
    m[fmt::format("mismatch/pos_signed/{}", i)] = ratio(s.position_sum[i], s.position_count[i]);
    m[fmt::format("mismatch/pos_absmean/{}", i)] = ratio(s.position_abs_sum[i], s.position_count[i]);
  }
  for (size_t i = 0; i < s.confidence_count.size(); ++i) {
    m[fmt::format("mismatch/conf_signed/{}", i)] = ratio(s.confidence_sum[i], s.confidence_count[i]);
    m[fmt::format("mismatch/conf_frac/{}", i)] = ratio(s.confidence_count[i], s.mismatch_tokens);
  }
}

}  // namespace

LossStats::LossStats() {
  for (const Field field : kMaxima) this->*field = -std::numeric_limits<double>::infinity();
  for (const Field field : kMinima) this->*field = std::numeric_limits<double>::infinity();
}

void LossStats::add(const LossStats& other) {
  for (const Field field : kSums) this->*field += other.*field;
  for (const Field field : kMaxima) this->*field = std::max(this->*field, other.*field);
  for (const Field field : kMinima) this->*field = std::min(this->*field, other.*field);
  add_array(gap_count, other.gap_count);
  add_array(gap_sum, other.gap_sum);
  add_array(position_count, other.position_count);
  add_array(position_sum, other.position_sum);
  add_array(position_abs_sum, other.position_abs_sum);
  add_array(confidence_count, other.confidence_count);
  add_array(confidence_sum, other.confidence_sum);
}

std::map<std::string, double> loss_metrics(const GrpoConfig& config, const LossStats& stats,
                                           double denominator) {
  Metrics metrics;
  add_policy(config, stats, denominator, metrics);
  add_mismatch(stats, metrics);
  if (stats.mismatch_tokens > 0) add_distributions(stats, metrics);
  return metrics;
}

}  // namespace lathe
