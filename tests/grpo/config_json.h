// The settings of a golden case, by the names of a run file.
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "lathe/grpo/config.h"

namespace lathe {

// JSON has no literals for what is not finite: strings stand for them.
inline double json_number(const nlohmann::json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto text = value.get<std::string>();
  return text == "NaN" ? NAN : text == "Infinity" ? INFINITY : -INFINITY;
}

template <typename Enum>
Enum choice(const nlohmann::json& value, const std::map<std::string, Enum>& names) {
  return names.at(value.get<std::string>());
}

inline GrpoConfig read_config(const nlohmann::json& json) {
  GrpoConfig c;
  for (const auto& [key, value] : json.items()) {
    const std::optional<double> real =
        value.is_number() ? std::optional<double>(value.get<double>()) : std::nullopt;
    if (key == "loss_agg_mode") {
      c.loss_agg_mode = choice<LossAggregation>(
          value, {{"sequence-mean-token-mean", LossAggregation::kSequenceMeanTokenMean},
                  {"token-mean", LossAggregation::kTokenMean},
                  {"sequence-mean-token-scale", LossAggregation::kSequenceMeanTokenScale},
                  {"seq-mean-token-sum", LossAggregation::kSeqMeanTokenSum},
                  {"sequence-mean-token-sum-norm", LossAggregation::kSequenceMeanTokenSumNorm}});
    } else if (key == "advantage_estimator") {
      c.advantage_estimator = choice<AdvantageEstimator>(value, {{"grpo", AdvantageEstimator::kGrpo},
                                                                 {"drgrpo", AdvantageEstimator::kDrGrpo},
                                                                 {"rloo", AdvantageEstimator::kRloo},
                                                                 {"grpo-loo", AdvantageEstimator::kGrpoLoo}});
    } else if (key == "loss_algo") {
      c.loss_algo = choice<LossAlgorithm>(
          value, {{"grpo", LossAlgorithm::kGrpo}, {"gspo-token", LossAlgorithm::kGspoToken}});
    } else if (key == "kl_loss_mode") {
      c.kl_loss_mode = choice<KlLossMode>(
          value,
          {{"kl", KlLossMode::kKl}, {"mse_kl", KlLossMode::kMseKl}, {"low_var_kl", KlLossMode::kLowVarKl}});
    } else if (key == "truncated_importance_sampling_type") {
      c.seq_mask_tis = value == "seq-mask-tis";
    } else if (key == "sampler_is") {
      c.sampler_is_token = value == "token";
    } else if (key == "overlong_loss_masking") {
      c.overlong_loss_masking = value.get<bool>();
    } else if (key == "use_rollout_logps") {
      c.use_rollout_logps = value.get<bool>();
    } else {
      const std::map<std::string, std::optional<double>*> optionals = {
          {"loss_agg_norm", &c.loss_agg_norm},
          {"epsilon_high", &c.epsilon_high},
          {"epsilon_c", &c.epsilon_c},
          {"kl_clamp_value", &c.kl_clamp_value},
          {"seq_logprob_error_threshold", &c.seq_logprob_error_threshold},
          {"sampler_is_threshold", &c.sampler_is_threshold},
          {"truncated_importance_sampling_ratio_min", &c.truncated_importance_sampling_ratio_min},
          {"truncated_importance_sampling_ratio", &c.truncated_importance_sampling_ratio}};
      if (key == "beta") {
        c.beta = *real;
      } else if (key == "epsilon") {
        c.epsilon = *real;
      } else {
        *optionals.at(key) = real;
      }
    }
  }
  return c;
}

}  // namespace lathe
