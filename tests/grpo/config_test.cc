#include "lathe/grpo/config.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "lathe/core/error.h"

namespace lathe {
namespace {

void expect_refused(const std::function<void(GrpoConfig&)>& change, const std::vector<std::string>& words) {
  GrpoConfig config;
  change(config);
  try {
    check_grpo_config(config);
    FAIL() << "accepted; expected an error with " << words.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    for (const auto& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

void set_band(GrpoConfig& c) {
  c.seq_mask_tis = true;
  c.truncated_importance_sampling_ratio_min = 0.97;
  c.truncated_importance_sampling_ratio = 1.03;
}

TEST(GrpoConfig, DefaultsAndUsualSettingsAreAccepted) {
  check_grpo_config({});
  GrpoConfig band;
  set_band(band);
  check_grpo_config(band);
  GrpoConfig clip;
  clip.epsilon_high = 0.28;
  clip.epsilon_c = 3;
  clip.beta = 0.04;
  clip.loss_agg_mode = LossAggregation::kSequenceMeanTokenScale;
  clip.loss_agg_norm = 150;
  clip.sampler_is_token = true;
  clip.sampler_is_threshold = std::nullopt;
  check_grpo_config(clip);
}

TEST(GrpoConfig, WeightsThatApplyTwiceAreRefused) {
  expect_refused([](GrpoConfig& c) { set_band(c), c.sampler_is_token = true; },
                 {"grpo.truncated_importance_sampling_type", "grpo.sampler_is", "twice"});
  expect_refused([](GrpoConfig& c) { set_band(c), c.use_rollout_logps = true; },
                 {"grpo.truncated_importance_sampling_type", "grpo.use_rollout_logps"});
  expect_refused([](GrpoConfig& c) { c.sampler_is_token = c.use_rollout_logps = true; },
                 {"grpo.sampler_is", "grpo.use_rollout_logps"});
}

TEST(GrpoConfig, BandMustBeWholeOrderedAndUsed) {
  expect_refused(
      [](GrpoConfig& c) { c.seq_mask_tis = true; },
      {"grpo.truncated_importance_sampling_type", "grpo.truncated_importance_sampling_ratio_min is missing"});
  expect_refused([](GrpoConfig& c) { set_band(c), c.truncated_importance_sampling_ratio.reset(); },
                 {"grpo.truncated_importance_sampling_ratio is missing"});
  expect_refused([](GrpoConfig& c) { set_band(c), c.truncated_importance_sampling_ratio_min = 1.5; },
                 {"1.5", "1.03"});
  expect_refused([](GrpoConfig& c) { c.truncated_importance_sampling_ratio = 1.03; },
                 {"grpo.truncated_importance_sampling_ratio", "no effect", "seq-mask-tis"});
}

TEST(GrpoConfig, FixedDenominatorCannotDropSequences) {
  const auto norm = [](GrpoConfig& c) { c.loss_agg_mode = LossAggregation::kSequenceMeanTokenSumNorm; };
  expect_refused([&](GrpoConfig& c) { norm(c), c.overlong_loss_masking = true; },
                 {"grpo.overlong_loss_masking", "grpo.loss_agg_mode sequence-mean-token-sum-norm"});
  expect_refused([&](GrpoConfig& c) { norm(c), c.seq_logprob_error_threshold = 1.5; },
                 {"grpo.seq_logprob_error_threshold", "grpo.loss_agg_mode"});
}

TEST(GrpoConfig, NormGoesWithItsModes) {
  expect_refused([](GrpoConfig& c) { c.loss_agg_mode = LossAggregation::kSequenceMeanTokenScale; },
                 {"grpo.loss_agg_norm", "sequence-mean-token-scale"});
  expect_refused([](GrpoConfig& c) { c.loss_agg_norm = 10; },
                 {"grpo.loss_agg_norm", "10", "grpo.loss_agg_mode"});
  expect_refused(
      [](GrpoConfig& c) {
        c.loss_agg_mode = LossAggregation::kSequenceMeanTokenScale;
        c.loss_agg_norm = 0;
      },
      {"grpo.loss_agg_norm", "0, expected"});
}

TEST(GrpoConfig, NumbersOutOfRangeAreNamed) {
  expect_refused([](GrpoConfig& c) { c.epsilon = -0.1; }, {"grpo.epsilon", "-0.1"});
  expect_refused([](GrpoConfig& c) { c.epsilon_high = 0.1; },
                 {"grpo.epsilon_high", "0.1", "grpo.epsilon = 0.2"});
  expect_refused([](GrpoConfig& c) { c.epsilon_c = 1; }, {"grpo.epsilon_c", "> 1"});
  expect_refused([](GrpoConfig& c) { c.beta = NAN; }, {"grpo.beta", "nan"});
  expect_refused([](GrpoConfig& c) { c.kl_clamp_value = 0; }, {"grpo.kl_clamp_value"});
  expect_refused([](GrpoConfig& c) { c.seq_logprob_error_threshold = 0.5; },
                 {"grpo.seq_logprob_error_threshold", ">= 1"});
  expect_refused([](GrpoConfig& c) { c.sampler_is_threshold = -1; }, {"grpo.sampler_is_threshold", "-1"});
  expect_refused([](GrpoConfig& c) { c.num_iterations = 0; }, {"grpo.num_iterations", "0"});
  expect_refused([](GrpoConfig& c) { c.reward_weights["format"] = INFINITY; },
                 {"grpo.reward_weights", "format", "inf"});
}

}  // namespace
}  // namespace lathe
