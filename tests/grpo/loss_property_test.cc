// What must hold whatever the numbers: values of the specification, masks that select, sums that do not
// depend on the cut.
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grpo/loss_batch.h"

namespace lathe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kUniform = -2.0794415416798357;  // log(1 / 8)

// Advantages that make each token's loss the wanted value at ratio 1.
LossBatch batch_of_losses(const std::vector<std::vector<double>>& losses,
                          const std::vector<std::vector<uint8_t>>& mask) {
  LossBatch b;
  for (size_t s = 0; s < losses.size(); ++s) {
    for (size_t t = 0; t < losses[s].size(); ++t) {
      b.live.push_back(kUniform);
      b.advantage.push_back(-losses[s][t]);
      b.mask.push_back(mask[s][t]);
      b.sequence.push_back(static_cast<int32_t>(s));
    }
  }
  return b;
}

double value(const GrpoConfig& config, const LossBatch& batch) {
  const LossResult r = batch.run(config);
  const double denominator = step_denominator(config, r.denom, r.stats.active_sequences);
  return denominator == 0 ? 0 : r.sum / denominator;
}

GrpoConfig with_mode(LossAggregation mode, std::optional<double> norm = std::nullopt) {
  GrpoConfig config;
  config.loss_agg_mode = mode;
  config.loss_agg_norm = norm;
  return config;
}

TEST(Loss, AggregationMatchesGoldenValues) {
  const LossBatch batch = batch_of_losses({{.1, .2, .3}, {.4, .5, .6}}, {{1, 1, 0}, {1, 1, 1}});
  LossBatch empty = batch;
  empty.mask.assign(6, 0);
  const struct {
    GrpoConfig config;
    double expected;
  } cases[] = {{with_mode(LossAggregation::kSequenceMeanTokenMean), .325},
               {with_mode(LossAggregation::kTokenMean), .36},
               {with_mode(LossAggregation::kSequenceMeanTokenScale, 3), .3},
               {with_mode(LossAggregation::kSeqMeanTokenSum), .9},
               {with_mode(LossAggregation::kSequenceMeanTokenSumNorm), .9},
               {with_mode(LossAggregation::kSequenceMeanTokenSumNorm, 4), .45}};
  for (const auto& c : cases) {
    EXPECT_NEAR(value(c.config, batch), c.expected, 1e-12);
    EXPECT_EQ(value(c.config, empty), 0);
    EXPECT_EQ(empty.run(c.config).sum, 0);
  }
}

TEST(Loss, PackedEqualsUnpacked) {
  LossBatch batch;
  batch.live.assign(4, kUniform);
  batch.advantage = {1.5, 1.5, 1.5, 3};
  batch.mask.assign(4, 1);
  batch.sequence = {0, 0, 0, 1};
  GrpoConfig config;
  EXPECT_NEAR(value(config, batch), -2.25, 1e-12);
  config.loss_algo = LossAlgorithm::kGspoToken;
  EXPECT_NEAR(value(config, batch), -2.25, 1e-12);
}

// The model of zero logits: every log-prob is log(1 / 8).
struct ZeroLogits : ::testing::Test {
  LossBatch batch = batch_of_losses({{-2, -2, -2}, {-4, -4, -4}}, {{1, 1, 1}, {1, 1, 0}});
  // The sampler's log-probs that give these ratios live / rollout.
  void ratios(const std::vector<double>& ratio) {
    batch.rollout.clear();
    for (const double r : ratio) batch.rollout.push_back(kUniform - std::log(r));
  }
};

TEST_F(ZeroLogits, ErrorGateDropsASequenceFromNumeratorAndDenominator) {
  GrpoConfig config;
  config.seq_logprob_error_threshold = 2.0;
  ratios({1, 1, 1, std::exp(2), std::exp(2), 1});
  EXPECT_NEAR(value(config, batch), -2, 1e-9);
  const LossStats stats = batch.run(config).stats;
  EXPECT_EQ(stats.kept, 1);
  EXPECT_EQ(loss_metrics(config, stats, 1).at("mismatch/kept_frac"), .5);
}

TEST_F(ZeroLogits, BandKeepsRejectedSequencesInTheDenominator) {
  GrpoConfig config;
  config.seq_mask_tis = true;
  config.truncated_importance_sampling_ratio_min = .5;
  config.truncated_importance_sampling_ratio = 2;
  ratios({1.5, 1.5, 1.5, 3, 3, 1});
  EXPECT_NEAR(value(config, batch), -1.5, 1e-6);
  const auto metrics = loss_metrics(config, batch.run(config).stats, 2);
  EXPECT_EQ(metrics.at("mismatch/outside_band_frac"), .5);
  EXPECT_EQ(metrics.at("mismatch/kept_frac"), 1);
  EXPECT_NEAR(metrics.at("mismatch/clipped_frac"), .4, 1e-12);
}

TEST_F(ZeroLogits, NoSamplerProbabilityMeansWeightZeroAndLogRatioZero) {
  GrpoConfig config;
  config.seq_mask_tis = true;
  config.truncated_importance_sampling_ratio_min = .5;
  config.truncated_importance_sampling_ratio = 2;
  ratios({1.5, 1.5, 1.5, 1, 1, 1});
  batch.rollout[1] = -kInf;
  EXPECT_NEAR(value(config, batch), -3, 1e-6);
  const auto metrics = loss_metrics(config, batch.run(config).stats, 2);
  EXPECT_NEAR(metrics.at("mismatch/seq_ratio_max"), 1.3103707, 1e-6);
  config.seq_mask_tis = false;
  config.truncated_importance_sampling_ratio_min.reset();
  config.truncated_importance_sampling_ratio.reset();
  config.seq_logprob_error_threshold = 2;
  EXPECT_NEAR(value(config, batch), -4, 1e-9);
  EXPECT_TRUE(std::isfinite(loss_metrics(config, batch.run(config).stats, 1).at("mismatch/seq_error_mean")));
}

TEST_F(ZeroLogits, TokenWeightsAreCapped) {
  GrpoConfig config;
  config.sampler_is_token = true;
  ratios({1.5, 1.5, 1.5, 3, 3, 1});
  config.sampler_is_threshold = std::nullopt;
  EXPECT_NEAR(value(config, batch), -(3 + 12) / 2., 1e-9);
  config.sampler_is_threshold = 1.2;
  EXPECT_NEAR(value(config, batch), -(2.4 + 4.8) / 2, 1e-9);
  EXPECT_EQ(loss_metrics(config, batch.run(config).stats, 2).at("mismatch/clipped_frac"), 1);
}

TEST(Loss, LowVarianceKl) {
  LossBatch batch = batch_of_losses({{0}}, {{1}});
  batch.ref = {kUniform + .3};
  GrpoConfig config;
  config.beta = 1;
  EXPECT_NEAR(value(config, batch), .0498588, 1e-7);
  // Moving towards the reference must lower it: the slope of the live log-prob is negative.
  EXPECT_LT(batch.run(config).dlogprobs[0], 0);
}

void expect_equal(const LossResult& a, const LossResult& b) {
  EXPECT_EQ(a.sum, b.sum);
  EXPECT_EQ(a.denom, b.denom);
  EXPECT_EQ(a.dlogprobs, b.dlogprobs);
  EXPECT_EQ(a.dentropy, b.dentropy);
  EXPECT_EQ(a.loss_mask, b.loss_mask);
}

std::vector<GrpoConfig> many_configs() {
  std::vector<GrpoConfig> configs;
  const LossAggregation modes[] = {LossAggregation::kSequenceMeanTokenMean, LossAggregation::kTokenMean,
                                   LossAggregation::kSequenceMeanTokenScale,
                                   LossAggregation::kSeqMeanTokenSum,
                                   LossAggregation::kSequenceMeanTokenSumNorm};
  for (const LossAggregation mode : modes) {
    for (int variant = 0; variant < 4; ++variant) {
      GrpoConfig c = with_mode(mode);
      if (mode == LossAggregation::kSequenceMeanTokenScale) c.loss_agg_norm = 9;
      const bool fixed = mode == LossAggregation::kSequenceMeanTokenSumNorm;
      if (fixed && variant % 2 == 1) c.loss_agg_norm = 5;
      c.beta = 0.1;
      c.entropy_coef = 0.02;
      c.epsilon_c = 2;
      if (variant % 2 == 0) c.loss_algo = LossAlgorithm::kGspoToken;
      if (variant == 1) {
        c.seq_mask_tis = true;
        c.truncated_importance_sampling_ratio_min = 0.9;
        c.truncated_importance_sampling_ratio = 1.1;
      }
      c.sampler_is_token = variant == 2;
      c.use_rollout_logps = variant == 3;
      if (!fixed && variant != 0) {
        c.overlong_loss_masking = true;
        c.seq_logprob_error_threshold = 1.6;
      }
      check_grpo_config(c);
      configs.push_back(c);
    }
  }
  return configs;
}

TEST(Loss, WhatStandsAtUnscoredPositionsCannotMatter) {
  const LossBatch clean = random_batch(3, {6, 2, 11, 4, 1}, 0.2);
  for (const double poison : {kNan, kInf, -kInf, 3e38, -100.0}) {
    LossBatch dirty = clean;
    for (size_t i = 0; i < dirty.size(); ++i) {
      if (dirty.mask[i] != 0) continue;
      for (auto* field :
           {&dirty.live, &dirty.old, &dirty.ref, &dirty.rollout, &dirty.entropy, &dirty.advantage}) {
        (*field)[i] = poison;
      }
    }
    for (const GrpoConfig& config : many_configs()) {
      const LossResult expected = clean.run(config);
      const LossResult got = dirty.run(config);
      expect_equal(got, expected);
      EXPECT_EQ(loss_metrics(config, got.stats, got.denom),
                loss_metrics(config, expected.stats, expected.denom));
    }
  }
}

TEST(Loss, PaddingTokensBelongToNoSequence) {
  LossBatch batch = random_batch(4, {5, 5});
  const LossResult expected = batch.run({});
  for (auto* field :
       {&batch.live, &batch.old, &batch.ref, &batch.rollout, &batch.entropy, &batch.advantage}) {
    field->push_back(kNan);
  }
  batch.mask.push_back(1);
  batch.sequence.push_back(-1);
  const LossResult got = batch.run({});
  EXPECT_EQ(got.sum, expected.sum);
  EXPECT_EQ(got.denom, expected.denom);
  EXPECT_EQ(got.dlogprobs.back(), 0);
}

TEST(Loss, ScoredTokenThatIsNotFiniteLeavesTheDenominator) {
  LossBatch batch = batch_of_losses({{1, 3}}, {{1, 1}});
  batch.old = {kUniform, kNan};
  const GrpoConfig config = with_mode(LossAggregation::kTokenMean);
  EXPECT_NEAR(value(config, batch), 1, 1e-12);
  const LossResult result = batch.run(config);
  EXPECT_EQ(result.denom, 1);
  EXPECT_EQ(result.stats.nonfinite_tokens, 1);  // and is counted
  EXPECT_EQ(loss_metrics(config, result.stats, 1).at("policy/nonfinite_tokens"), 1);
  batch.mask[1] = 0;
  EXPECT_EQ(batch.run(config).stats.nonfinite_tokens, 0);
}

// A masked token with a gap of 99 nats equals one with no gap (the first fault of the numerics list).
TEST(Loss, FarGapOfAMaskedTokenDoesNotMatter) {
  LossBatch batch = random_batch(5, {8});
  batch.mask[3] = 0;
  batch.rollout[3] = batch.live[3];
  GrpoConfig config;
  config.use_rollout_logps = true;
  const LossResult expected = batch.run(config);
  batch.rollout[3] = -100;
  expect_equal(batch.run(config), expected);
}

LossBatch part(const LossBatch& batch, const std::vector<int>& owner, int which) {
  LossBatch out;
  std::vector<int32_t> names(batch.overlong.size(), -1);
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto s = static_cast<size_t>(batch.sequence[i]);
    if (owner[s] != which) continue;
    if (names[s] < 0) {
      names[s] = static_cast<int32_t>(out.overlong.size());
      out.overlong.push_back(batch.overlong[s]);
    }
    out.live.push_back(batch.live[i]);
    out.old.push_back(batch.old[i]);
    out.ref.push_back(batch.ref[i]);
    out.rollout.push_back(batch.rollout[i]);
    out.entropy.push_back(batch.entropy[i]);
    out.advantage.push_back(batch.advantage[i]);
    out.mask.push_back(batch.mask[i]);
    out.sequence.push_back(names[s]);
  }
  return out;
}

struct Step {
  double objective = 0;
  double denominator = 0;
  std::map<std::string, double> metrics;
};

Step run_in_parts(const LossBatch& batch, const GrpoConfig& config, int parts) {
  std::vector<int> owner(batch.overlong.size());
  for (size_t s = 0; s < owner.size(); ++s) owner[s] = static_cast<int>(s) % parts;
  LossStats stats;
  Step step;
  double denominators = 0;
  for (int k = 0; k < parts; ++k) {
    const LossResult r = part(batch, owner, k).run(config);
    step.objective += r.sum;
    denominators += r.denom;
    stats.add(r.stats);
  }
  step.denominator = step_denominator(config, denominators, stats.active_sequences);
  step.metrics = loss_metrics(config, stats, step.denominator);
  return step;
}

TEST(Loss, AnyCutIntoMicroBatchesGivesTheSameStep) {
  LossBatch batch = random_batch(9, {2, 16, 3, 16, 2, 16, 2, 16}, 0.2);
  // One sequence without a scored token: as a micro-batch of its own it may not move anything.
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch.sequence[i] == 2) batch.mask[i] = 0;
  }
  int number = 0;
  for (const GrpoConfig& config : many_configs()) {
    SCOPED_TRACE(fmt::format("config {}", number++));
    Step whole;
    const LossResult at_once = batch.run(config);
    whole.objective = at_once.sum;
    whole.denominator = step_denominator(config, at_once.denom, at_once.stats.active_sequences);
    whole.metrics = loss_metrics(config, at_once.stats, whole.denominator);
    EXPECT_GT(whole.denominator, 0);
    EXPECT_NEAR(whole.metrics.at("policy/loss"), whole.objective / whole.denominator, 1e-12);
    for (const int parts : {1, 2, 3, 8}) {
      const Step cut = run_in_parts(batch, config, parts);
      EXPECT_NEAR(cut.objective / cut.denominator, whole.objective / whole.denominator, 1e-12);
      ASSERT_EQ(cut.metrics.size(), whole.metrics.size());
      for (const auto& [name, expected] : whole.metrics) {
        EXPECT_NEAR(cut.metrics.at(name), expected, 1e-12 * (1 + std::abs(expected))) << name;
      }
    }
  }
}

TEST(Loss, EmptyMicroBatchLeavesExtremesAlone) {
  LossStats stats = random_batch(2, {5}).run({}).stats;
  const double ratio_max = stats.ratio_max;
  const double ratio_min = stats.ratio_min;
  LossBatch nothing = random_batch(3, {5});
  nothing.mask.assign(5, 0);
  stats.add(nothing.run({}).stats);
  stats.add(LossBatch().run({}).stats);
  EXPECT_EQ(stats.ratio_max, ratio_max);
  EXPECT_EQ(stats.ratio_min, ratio_min);
  const auto empty = loss_metrics({}, nothing.run({}).stats, 0);
  for (const auto& [name, number] : empty) EXPECT_TRUE(std::isfinite(number)) << name;
  EXPECT_EQ(empty.at("policy/ratio_max"), 1);
}

TEST(Loss, OnPolicyRatioIsExactlyOneAndTheGradientIsNot) {
  LossBatch batch = random_batch(6, {7, 3});
  batch.old.clear();
  const LossResult r = batch.run({});
  EXPECT_EQ(r.stats.ratio_max, 1);
  EXPECT_EQ(r.stats.ratio_min, 1);
  EXPECT_EQ(r.stats.clip_num, 0);
  double largest = 0;
  for (const double g : r.dlogprobs) largest = std::max(largest, std::abs(g));
  EXPECT_GT(largest, 0);
}

TEST(LossMetrics, MismatchShowsABiasAndItsSign) {
  LossBatch batch = random_batch(8, {40});
  for (size_t i = 0; i < batch.size(); ++i) batch.rollout[i] = batch.live[i] + 0.105;
  const auto m = loss_metrics({}, batch.run({}).stats, 1);
  EXPECT_NEAR(m.at("mismatch/mean"), -0.105, 1e-12);
  EXPECT_NEAR(m.at("mismatch/abs_mean"), 0.105, 1e-12);
  EXPECT_NEAR(m.at("mismatch/kl"), std::exp(-0.105) + 0.105 - 1, 1e-12);
  EXPECT_NEAR(m.at("mismatch/prob_error"), std::exp(0.105), 1e-12);
  double mass = 0;
  double share = 0;
  for (int i = 0; i < 15; ++i) {
    mass += m.at(fmt::format("mismatch/hist_mass/{}", i));
    share += m.at(fmt::format("mismatch/hist_frac/{}", i));
  }
  EXPECT_NEAR(mass, m.at("mismatch/mean"), 1e-12);
  EXPECT_NEAR(share, 1, 1e-12);
  EXPECT_NEAR(m.at("mismatch/hist_frac/6"), 1, 1e-12);  // -0.2 .. -0.05
}

TEST(LossMetrics, TokensWithoutARolloutLogProbAreNotCounted) {
  LossBatch batch = random_batch(8, {4});
  batch.mask.assign(4, 1);
  for (size_t i = 0; i < 4; ++i) batch.rollout[i] = batch.live[i] - 1;
  batch.rollout[2] = kNan;
  const auto m = loss_metrics({}, batch.run({}).stats, 1);
  EXPECT_EQ(m.at("mismatch/tokens"), 3);
  EXPECT_NEAR(m.at("mismatch/abs_mean"), 1, 1e-12);
}

TEST(LossMetrics, NeutralWithoutRolloutLogProbs) {
  LossBatch batch = random_batch(8, {4});
  batch.rollout.clear();
  const auto m = loss_metrics({}, batch.run({}).stats, 1);
  EXPECT_EQ(m.at("mismatch/kl"), 0);
  EXPECT_EQ(m.at("mismatch/prob_error"), 1);
  EXPECT_EQ(m.at("mismatch/seq_ratio_mean"), 1);
  EXPECT_EQ(m.at("mismatch/kept_frac"), 1);
  EXPECT_EQ(m.count("mismatch/hist_frac/0"), 0U);
}

}  // namespace
}  // namespace lathe
