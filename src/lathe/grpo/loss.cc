#include "lathe/grpo/loss.h"

#include <algorithm>
#include <cmath>

#include "lathe/core/error.h"
#include "lathe/grpo/mismatch.h"

namespace lathe {
namespace {

constexpr double kLogRatioLimit = 20;
constexpr double kGspoUpperLimit = 10;
constexpr double kNormFloor = 1e-6;
constexpr double kNonzeroAdvantage = 1e-8;

// A value and its derivative by the live log-prob.
struct Term {
  double value = 0;
  double slope = 0;
};

Term clamped(Term x, double low, double high) {
  return {std::clamp(x.value, low, high), x.value >= low && x.value <= high ? x.slope : 0.0};
}

class Loss {
 public:
  Loss(const GrpoConfig& config, const LossInputs& inputs)
      : config_(config), in_(inputs), n_(inputs.logprobs.size()), count_(size_of(inputs.sequences)) {}
  LossResult run();

 private:
  static size_t size_of(int64_t value) { return static_cast<size_t>(value); }
  [[nodiscard]] size_t sequence_of(size_t i) const { return static_cast<size_t>(in_.sequence[i]); }
  [[nodiscard]] std::span<const double> old_logprobs() const {
    return config_.use_rollout_logps ? in_.rollout_logprobs : in_.old_logprobs;
  }

  void check_inputs() const;
  void find_scored();
  void choose_sequences();
  void apply_error_gate();
  void mask_tokens();
  void pool_sequence_ratios();
  [[nodiscard]] Term log_ratio(size_t i) const;
  [[nodiscard]] double weight(size_t i);
  [[nodiscard]] Term policy(size_t i, double token_weight);
  [[nodiscard]] Term reference_kl(size_t i) const;
  [[nodiscard]] double coefficient(size_t i) const;
  [[nodiscard]] double denominator() const;
  void count_weights();
  void count_band();
  void add_token(size_t i);

  const GrpoConfig& config_;
  const LossInputs& in_;
  size_t n_;
  size_t count_;
  std::vector<uint8_t> scored_;        // [n] mask 1 and part of a sequence
  std::vector<int64_t> scored_count_;  // [sequences]
  std::vector<uint8_t> keep_;          // [sequences]
  std::vector<int64_t> active_count_;  // [sequences] tokens in the loss
  std::vector<double> pooled_;         // [sequences] gspo-token: mean log ratio
  SamplerGap gap_;
  LossResult out_;
};

void Loss::check_inputs() const {
  const auto full_or = [&](std::span<const double> field, bool may_be_empty) {
    return field.size() == n_ || (may_be_empty && field.empty());
  };
  LATHE_CHECK(in_.advantage.size() == n_ && in_.mask.size() == n_ && in_.sequence.size() == n_);
  LATHE_CHECK(full_or(in_.old_logprobs, true) && full_or(in_.ref_logprobs, config_.beta == 0 || n_ == 0));
  LATHE_CHECK(full_or(in_.rollout_logprobs, !config_.needs_rollout_logprobs() || n_ == 0));
  LATHE_CHECK(full_or(in_.entropy, config_.entropy_coef == 0 || n_ == 0));
  LATHE_CHECK(in_.overlong.size() == count_ || (in_.overlong.empty() && !config_.overlong_loss_masking) ||
              n_ == 0);
}

void Loss::find_scored() {
  scored_.assign(n_, 0);
  scored_count_.assign(count_, 0);
  for (size_t i = 0; i < n_; ++i) {
    LATHE_CHECK(in_.sequence[i] < in_.sequences);
    if (in_.mask[i] == 0 || in_.sequence[i] < 0) continue;
    scored_[i] = 1;
    ++scored_count_[sequence_of(i)];
    out_.stats.scored_tokens += 1;
  }
}

void Loss::choose_sequences() {
  keep_.assign(count_, 1);
  if (config_.overlong_loss_masking && !in_.overlong.empty()) {
    for (size_t s = 0; s < count_; ++s) keep_[s] = in_.overlong[s] == 0 ? 1 : 0;
  }
  if (config_.seq_logprob_error_threshold) apply_error_gate();
  for (size_t s = 0; s < count_; ++s) {
    if (scored_count_[s] == 0) continue;
    out_.stats.sequences += 1;
    out_.stats.kept += keep_[s];
  }
}

// Uses the gap as it is: a scored token that the sampler gave no probability makes the mean infinite, one
// without a number makes it NaN, and both drop the sequence.
void Loss::apply_error_gate() {
  std::vector<double> error(count_, 0.0);
  for (size_t i = 0; i < n_; ++i) {
    if (scored_[i] == 0 || keep_[sequence_of(i)] == 0) continue;
    error[sequence_of(i)] += std::exp(std::abs(in_.logprobs[i] - in_.rollout_logprobs[i]));
  }
  for (size_t s = 0; s < count_; ++s) {
    if (scored_count_[s] == 0 || keep_[s] == 0) continue;
    const double mean = error[s] / static_cast<double>(scored_count_[s]);
    keep_[s] = mean <= *config_.seq_logprob_error_threshold ? 1 : 0;
    if (!std::isfinite(mean)) continue;
    out_.stats.seq_error_sum += mean;
    out_.stats.seq_error_count += 1;
    out_.stats.seq_error_max = std::max(out_.stats.seq_error_max, mean);
  }
}

void Loss::mask_tokens() {
  out_.loss_mask.assign(n_, 0);
  active_count_.assign(count_, 0);
  const auto old = old_logprobs();
  for (size_t i = 0; i < n_; ++i) {
    if (scored_[i] == 0 || keep_[sequence_of(i)] == 0) continue;
    const bool has_old = old.empty() || std::isfinite(old[i]);
    if (!std::isfinite(in_.logprobs[i]) || !std::isfinite(in_.advantage[i]) || !has_old) {
      // A sampler may have recorded none at a token: that is no fault.
      if (has_old || !config_.use_rollout_logps) out_.stats.nonfinite_tokens += 1;
      continue;
    }
    out_.loss_mask[i] = 1;
    ++active_count_[sequence_of(i)];
    out_.stats.token_denom += 1;
  }
  for (const int64_t tokens : active_count_) out_.stats.active_sequences += tokens > 0 ? 1 : 0;
}

void Loss::pool_sequence_ratios() {
  if (config_.loss_algo != LossAlgorithm::kGspoToken) return;
  pooled_.assign(count_, 0.0);
  const auto old = old_logprobs();
  for (size_t i = 0; i < n_; ++i) {
    if (out_.loss_mask[i] == 0 || old.empty()) continue;
    pooled_[sequence_of(i)] += std::clamp(in_.logprobs[i] - old[i], -kLogRatioLimit, kLogRatioLimit);
  }
  for (size_t s = 0; s < count_; ++s)
    pooled_[s] /= static_cast<double>(std::max<int64_t>(active_count_[s], 1));
}

Term Loss::log_ratio(size_t i) const {
  if (config_.loss_algo == LossAlgorithm::kGspoToken) {
    return clamped({pooled_[sequence_of(i)], 1}, -kLogRatioLimit, kGspoUpperLimit);
  }
  const auto old = old_logprobs();
  return clamped({old.empty() ? 0.0 : in_.logprobs[i] - old[i], 1}, -kLogRatioLimit, kLogRatioLimit);
}

double Loss::weight(size_t i) {
  if (!config_.seq_mask_tis && !config_.sampler_is_token) return 1;
  if (gap_.finite[i] == 0) return 0;
  const double ratio = std::exp(std::clamp(gap_.gap[i], -kLogRatioLimit, kLogRatioLimit));
  if (config_.sampler_is_token) return std::min(ratio, config_.sampler_is_threshold.value_or(ratio));
  const double sequence = gap_.ratio[sequence_of(i)];
  const bool inside = sequence >= *config_.truncated_importance_sampling_ratio_min &&
                      sequence <= *config_.truncated_importance_sampling_ratio;
  return inside ? ratio : 0;
}

Term Loss::policy(size_t i, double token_weight) {
  LossStats& stats = out_.stats;
  const Term r = log_ratio(i);
  const double advantage = in_.advantage[i];
  const Term ratio = {std::exp(r.value), std::exp(r.value) * r.slope};
  const double high = config_.epsilon_high.value_or(config_.epsilon);
  const Term bounded = clamped(ratio, 1 - config_.epsilon, 1 + high);
  const Term plain = {-advantage * ratio.value, -advantage * ratio.slope};
  const Term clipped = {-advantage * bounded.value, -advantage * bounded.slope};
  const bool clips = clipped.value > plain.value;
  Term loss = clips ? clipped : plain;
  stats.clip_num += clips ? 1 : 0;
  stats.clip_low_num += clips && advantage < 0 ? 1 : 0;
  if (config_.epsilon_c && advantage < 0) {
    const double cap = -*config_.epsilon_c * advantage;
    if (loss.value > cap) {
      loss = {cap, 0};
      stats.clip_lower_num += 1;
    }
  }
  stats.ratio_sum += ratio.value;
  stats.ratio_max = std::max(stats.ratio_max, ratio.value);
  stats.ratio_min = std::min(stats.ratio_min, ratio.value);
  stats.log_ratio_abs_sum += std::abs(r.value);
  stats.unclipped_sum += plain.value;
  stats.clipped_sum += clipped.value;
  if (token_weight == 0) return {};
  return {loss.value * token_weight, loss.slope * token_weight};
}

Term Loss::reference_kl(size_t i) const {
  const double gap = in_.ref_logprobs[i] - in_.logprobs[i];
  Term kl;
  switch (config_.kl_loss_mode) {
    case KlLossMode::kKl:
      kl = {-gap, 1};
      break;
    case KlLossMode::kMseKl:
      kl = {gap * gap / 2, -gap};
      break;
    case KlLossMode::kLowVarKl:
      kl = {std::exp(gap) - gap - 1, 1 - std::exp(gap)};
      break;
  }
  return config_.kl_clamp_value ? clamped(kl, -*config_.kl_clamp_value, *config_.kl_clamp_value) : kl;
}

double Loss::coefficient(size_t i) const {
  switch (config_.loss_agg_mode) {
    case LossAggregation::kSequenceMeanTokenMean:
      return 1 / static_cast<double>(active_count_[sequence_of(i)]);
    case LossAggregation::kSequenceMeanTokenScale:
      return 1 / std::max(*config_.loss_agg_norm, kNormFloor);
    case LossAggregation::kTokenMean:
    case LossAggregation::kSeqMeanTokenSum:
    case LossAggregation::kSequenceMeanTokenSumNorm:
      return 1;
  }
  return 0;
}

double Loss::denominator() const {
  if (config_.loss_agg_mode == LossAggregation::kTokenMean) return out_.stats.token_denom;
  if (config_.loss_agg_mode == LossAggregation::kSequenceMeanTokenSumNorm && config_.loss_agg_norm) {
    return *config_.loss_agg_norm;
  }
  return out_.stats.active_sequences;
}

void Loss::count_weights() {
  if (!config_.seq_mask_tis && !config_.sampler_is_token) return;
  for (size_t i = 0; i < n_; ++i) {
    if (scored_[i] == 0) continue;
    const double w = weight(i);
    const bool capped =
        config_.sampler_is_token && config_.sampler_is_threshold &&
        std::exp(std::clamp(gap_.gap[i], -kLogRatioLimit, kLogRatioLimit)) > *config_.sampler_is_threshold;
    out_.stats.weight_capped += w == 0 || capped ? 1 : 0;
  }
}

void Loss::count_band() {
  if (!config_.seq_mask_tis) return;
  for (size_t s = 0; s < count_; ++s) {
    if (scored_count_[s] == 0 || keep_[s] == 0) continue;
    const bool inside = gap_.ratio[s] >= *config_.truncated_importance_sampling_ratio_min &&
                        gap_.ratio[s] <= *config_.truncated_importance_sampling_ratio;
    out_.stats.tis_counted += 1;
    out_.stats.tis_outside += inside ? 0 : 1;
  }
}

void Loss::add_token(size_t i) {
  LossStats& stats = out_.stats;
  const double share = coefficient(i);
  const double token_weight = weight(i);
  stats.weight_sum += token_weight;
  stats.weight_min = std::min(stats.weight_min, token_weight);
  const double advantage = in_.advantage[i];
  stats.advantage_abs_sum += std::abs(advantage);
  stats.advantage_nonzero += std::abs(advantage) > kNonzeroAdvantage ? 1 : 0;
  stats.advantage_max = std::max(stats.advantage_max, advantage);
  stats.advantage_min = std::min(stats.advantage_min, advantage);
  const auto old = old_logprobs();
  if (!old.empty()) stats.ppo_kl_num += old[i] - in_.logprobs[i];

  const Term loss = policy(i, token_weight);
  stats.pg_sum += share * loss.value;
  double slope = loss.slope;
  if (!in_.ref_logprobs.empty()) {
    const Term kl = reference_kl(i);
    stats.kl_num += kl.value;
    stats.kl_loss_sum += share * kl.value;
    if (config_.beta != 0) slope += config_.beta * kl.slope;
  }
  out_.dlogprobs[i] = share * slope;
  if (!in_.entropy.empty() && std::isfinite(in_.entropy[i])) {
    stats.entropy_sum += share * in_.entropy[i];
    if (config_.entropy_coef != 0) out_.dentropy[i] = -config_.entropy_coef * share;
  }
}

LossResult Loss::run() {
  check_inputs();
  find_scored();
  gap_ = sampler_gap(in_, scored_, scored_count_);
  choose_sequences();
  mask_tokens();
  pool_sequence_ratios();
  count_weights();
  count_band();
  add_mismatch_stats(in_, gap_, scored_, scored_count_, out_.stats);
  out_.dlogprobs.assign(n_, 0.0);
  if (config_.entropy_coef != 0) out_.dentropy.assign(n_, 0.0);
  for (size_t i = 0; i < n_; ++i) {
    if (out_.loss_mask[i] != 0) add_token(i);
  }
  const LossStats& stats = out_.stats;
  out_.denom = denominator();
  out_.sum = stats.pg_sum;
  if (config_.beta != 0) out_.sum += config_.beta * stats.kl_loss_sum;
  if (config_.entropy_coef != 0) out_.sum -= config_.entropy_coef * stats.entropy_sum;
  return std::move(out_);
}

}  // namespace

LossResult grpo_loss(const GrpoConfig& config, const LossInputs& inputs) {
  return Loss(config, inputs).run();
}

double step_denominator(const GrpoConfig& config, double summed_denominators, double active_sequences) {
  if (active_sequences == 0) return 0;
  if (config.loss_agg_mode == LossAggregation::kSequenceMeanTokenSumNorm && config.loss_agg_norm) {
    return *config.loss_agg_norm;
  }
  return summed_denominators;
}

}  // namespace lathe
