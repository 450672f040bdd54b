#include "lathe/grpo/config.h"

#include <cmath>

#include "lathe/core/error.h"

namespace lathe {
namespace {

void require_number(bool good, const char* key, double value, const char* expected) {
  if (good) return;
  config_error(fmt::format("grpo.{}", key), fmt::format("{}, expected {}", value, expected));
}

void require_positive(const char* key, const std::optional<double>& value) {
  if (value) require_number(std::isfinite(*value) && *value > 0, key, *value, "a finite number > 0");
}

void refuse_pair(const char* first, const char* second, const std::string& why, const std::string& hint) {
  config_error(fmt::format("grpo.{}", first), fmt::format("cannot be combined with grpo.{}: {}", second, why),
               hint);
}

void check_clipping(const GrpoConfig& c) {
  require_number(std::isfinite(c.epsilon) && c.epsilon >= 0, "epsilon", c.epsilon, "a finite number >= 0");
  if (c.epsilon_high) {
    require_number(std::isfinite(*c.epsilon_high), "epsilon_high", *c.epsilon_high, "a finite number");
    if (*c.epsilon_high < c.epsilon) {
      config_error("grpo.epsilon_high",
                   fmt::format("{}, expected at least grpo.epsilon = {}", *c.epsilon_high, c.epsilon),
                   "the upper clip may only be the wider one; lower grpo.epsilon too");
    }
  }
  if (c.epsilon_c) {
    require_number(std::isfinite(*c.epsilon_c) && *c.epsilon_c > 1, "epsilon_c", *c.epsilon_c,
                   "a finite number > 1");
  }
}

void check_aggregation(const GrpoConfig& c) {
  require_positive("loss_agg_norm", c.loss_agg_norm);
  const bool scale = c.loss_agg_mode == LossAggregation::kSequenceMeanTokenScale;
  const bool sum_norm = c.loss_agg_mode == LossAggregation::kSequenceMeanTokenSumNorm;
  if (scale && !c.loss_agg_norm) {
    config_error("grpo.loss_agg_norm", "missing, but grpo.loss_agg_mode is sequence-mean-token-scale",
                 "set it to the longest completion the sampler may produce, such as 1024");
  }
  if (c.loss_agg_norm && !scale && !sum_norm) {
    config_error(
        "grpo.loss_agg_norm", fmt::format("{} has no effect with this grpo.loss_agg_mode", *c.loss_agg_norm),
        "drop it, or use grpo.loss_agg_mode sequence-mean-token-scale or sequence-mean-token-sum-norm");
  }
  const std::string why = "a fixed denominator cannot express dropped sequences";
  const std::string hint = "use another grpo.loss_agg_mode, such as token-mean";
  if (sum_norm && c.overlong_loss_masking) {
    refuse_pair("overlong_loss_masking", "loss_agg_mode sequence-mean-token-sum-norm", why, hint);
  }
  if (sum_norm && c.seq_logprob_error_threshold) {
    refuse_pair("seq_logprob_error_threshold", "loss_agg_mode sequence-mean-token-sum-norm", why, hint);
  }
}

void check_band(const GrpoConfig& c) {
  const auto& low = c.truncated_importance_sampling_ratio_min;
  const auto& high = c.truncated_importance_sampling_ratio;
  require_positive("truncated_importance_sampling_ratio_min", low);
  require_positive("truncated_importance_sampling_ratio", high);
  if (!c.seq_mask_tis) {
    if (low || high) {
      config_error(
          low ? "grpo.truncated_importance_sampling_ratio_min" : "grpo.truncated_importance_sampling_ratio",
          "has no effect without grpo.truncated_importance_sampling_type: seq-mask-tis");
    }
    return;
  }
  if (!low || !high) {
    config_error(
        "grpo.truncated_importance_sampling_type",
        fmt::format("seq-mask-tis needs a band, but {} is missing",
                    low ? "grpo.truncated_importance_sampling_ratio"
                        : "grpo.truncated_importance_sampling_ratio_min"),
        "set both grpo.truncated_importance_sampling_ratio_min and grpo.truncated_importance_sampling_ratio");
  }
  if (*low > *high) {
    config_error(
        "grpo.truncated_importance_sampling_ratio_min",
        fmt::format("{}, expected at most grpo.truncated_importance_sampling_ratio = {}", *low, *high));
  }
}

void check_weights(const GrpoConfig& c) {
  check_band(c);
  const std::string twice = "the ratio to the sampler would be applied twice";
  if (c.seq_mask_tis && c.sampler_is_token) {
    refuse_pair("truncated_importance_sampling_type", "sampler_is", twice, "keep one of the two");
  }
  if (c.seq_mask_tis && c.use_rollout_logps) {
    refuse_pair("truncated_importance_sampling_type", "use_rollout_logps", twice,
                "set grpo.use_rollout_logps: false");
  }
  if (c.sampler_is_token && c.use_rollout_logps) {
    refuse_pair("sampler_is", "use_rollout_logps", twice, "set grpo.use_rollout_logps: false");
  }
  require_positive("sampler_is_threshold", c.sampler_is_threshold);
  if (c.seq_logprob_error_threshold) {
    // The mean of exp |d| is at least 1: a lower threshold would drop every sequence.
    require_number(std::isfinite(*c.seq_logprob_error_threshold) && *c.seq_logprob_error_threshold >= 1,
                   "seq_logprob_error_threshold", *c.seq_logprob_error_threshold, "a finite number >= 1");
  }
}

}  // namespace

void check_grpo_config(const GrpoConfig& config) {
  check_clipping(config);
  check_aggregation(config);
  check_weights(config);
  require_number(std::isfinite(config.beta) && config.beta >= 0, "beta", config.beta, "a finite number >= 0");
  require_positive("kl_clamp_value", config.kl_clamp_value);
  require_number(std::isfinite(config.entropy_coef), "entropy_coef", config.entropy_coef, "a finite number");
  if (config.num_iterations < 1) {
    config_error("grpo.num_iterations", fmt::format("{}, expected an integer >= 1", config.num_iterations));
  }
  for (const auto& [name, weight] : config.reward_weights) {
    if (!std::isfinite(weight)) {
      config_error("grpo.reward_weights", fmt::format("{}: {}, expected a finite number", name, weight));
    }
  }
}

}  // namespace lathe
