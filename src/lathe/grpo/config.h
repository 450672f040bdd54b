// Settings of the GRPO loss and advantages (run file section `grpo`).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace lathe {

enum class AdvantageEstimator : uint8_t { kGrpo, kDrGrpo, kRloo, kGrpoLoo };
enum class LossAggregation : uint8_t {
  kSequenceMeanTokenMean,
  kTokenMean,
  kSequenceMeanTokenScale,
  kSeqMeanTokenSum,
  kSequenceMeanTokenSumNorm,
};
enum class LossAlgorithm : uint8_t { kGrpo, kGspoToken };
enum class KlLossMode : uint8_t { kKl, kMseKl, kLowVarKl };

struct GrpoConfig {
  AdvantageEstimator advantage_estimator = AdvantageEstimator::kGrpo;
  LossAggregation loss_agg_mode = LossAggregation::kSequenceMeanTokenMean;
  std::optional<double> loss_agg_norm;
  LossAlgorithm loss_algo = LossAlgorithm::kGrpo;
  double epsilon = 0.2;
  std::optional<double> epsilon_high;  // default: epsilon
  std::optional<double> epsilon_c;     // dual clip
  double beta = 0;
  KlLossMode kl_loss_mode = KlLossMode::kLowVarKl;
  std::optional<double> kl_clamp_value;
  bool overlong_loss_masking = false;
  std::optional<double> seq_logprob_error_threshold;
  bool sampler_is_token = false;  // sampler_is: token
  std::optional<double> sampler_is_threshold = 2.0;
  bool seq_mask_tis = false;  // truncated_importance_sampling_type: seq-mask-tis
  std::optional<double> truncated_importance_sampling_ratio_min;
  std::optional<double> truncated_importance_sampling_ratio;
  bool use_rollout_logps = false;
  int64_t num_iterations = 1;
  double entropy_coef = 0;
  bool reference_initial = false;  // reference: initial
  std::map<std::string, double> reward_weights;

  // A token's gradient depends on the log-probs of other tokens: of its sequence.
  [[nodiscard]] bool depends_on_whole_sequences() const {
    return loss_algo == LossAlgorithm::kGspoToken || seq_logprob_error_threshold.has_value() || seq_mask_tis;
  }
  [[nodiscard]] bool needs_rollout_logprobs() const {
    return seq_logprob_error_threshold.has_value() || sampler_is_token || seq_mask_tis || use_rollout_logps;
  }
};

// Combinations that cannot mean anything are config errors that name both keys.
void check_grpo_config(const GrpoConfig& config);

}  // namespace lathe
