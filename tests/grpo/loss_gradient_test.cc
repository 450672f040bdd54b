// The hand-written gradient against central differences of the objective, with masks, gates, weights and old
// log-probs held where they were (they are constants of the gradient).
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lathe/grpo/config.h"

#include "grpo/loss_batch.h"

namespace lathe {
namespace {

constexpr double kStep = 1e-6;
constexpr double kTolerance = 2e-8;

// The objective written down once more, in plain loops over one token's dependence: everything detached comes
// from `at`. It covers loss_algo grpo; gspo-token has its own identity below.
double objective(const GrpoConfig& c, const LossBatch& at, const LossResult& frozen,
                 const std::vector<double>& live) {
  std::vector<double> count(static_cast<size_t>(at.sequences()), 0.0);
  for (size_t i = 0; i < at.size(); ++i) {
    if (frozen.loss_mask[i] != 0) count[static_cast<size_t>(at.sequence[i])] += 1;
  }
  double sum = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    if (frozen.loss_mask[i] == 0) continue;
    const auto s = static_cast<size_t>(at.sequence[i]);
    const double ratio = std::exp(live[i] - at.old[i]);
    const double a = at.advantage[i];
    double loss =
        std::max(-a * ratio, -a * std::clamp(ratio, 1 - c.epsilon, 1 + c.epsilon_high.value_or(c.epsilon)));
    if (c.epsilon_c && a < 0) loss = std::min(loss, -*c.epsilon_c * a);
    if (c.sampler_is_token) loss *= std::min(std::exp(at.live[i] - at.rollout[i]), *c.sampler_is_threshold);
    const double gap = at.ref[i] - live[i];
    double kl = c.kl_loss_mode == KlLossMode::kKl      ? -gap
                : c.kl_loss_mode == KlLossMode::kMseKl ? gap * gap / 2
                                                       : std::exp(gap) - gap - 1;
    if (c.kl_clamp_value) kl = std::clamp(kl, -*c.kl_clamp_value, *c.kl_clamp_value);
    const double share = c.loss_agg_mode == LossAggregation::kSequenceMeanTokenMean    ? 1 / count[s]
                         : c.loss_agg_mode == LossAggregation::kSequenceMeanTokenScale ? 1 / *c.loss_agg_norm
                                                                                       : 1;
    sum += share * (loss + c.beta * kl - c.entropy_coef * at.entropy[i]);
  }
  return sum;
}

void expect_gradient(const GrpoConfig& config, uint32_t seed) {
  const LossBatch batch = random_batch(seed, {5, 1, 9, 3, 7}, 0.3);
  const LossResult got = batch.run(config);
  EXPECT_NEAR(got.sum, objective(config, batch, got, batch.live), 1e-12 * (1 + std::abs(got.sum)));
  bool any = false;
  for (size_t i = 0; i < batch.size(); ++i) {
    auto up = batch.live;
    auto down = batch.live;
    up[i] += kStep;
    down[i] -= kStep;
    const double difference =
        (objective(config, batch, got, up) - objective(config, batch, got, down)) / (2 * kStep);
    EXPECT_NEAR(got.dlogprobs[i], difference, kTolerance * (1 + std::abs(difference))) << "token " << i;
    any = any || difference != 0;
  }
  EXPECT_TRUE(any);
}

constexpr LossAggregation kModes[] = {LossAggregation::kSequenceMeanTokenMean, LossAggregation::kTokenMean,
                                      LossAggregation::kSequenceMeanTokenScale,
                                      LossAggregation::kSeqMeanTokenSum,
                                      LossAggregation::kSequenceMeanTokenSumNorm};

GrpoConfig with_mode(LossAggregation mode) {
  GrpoConfig config;
  config.loss_agg_mode = mode;
  if (mode == LossAggregation::kSequenceMeanTokenScale) config.loss_agg_norm = 12;
  return config;
}

TEST(LossGradient, EveryAggregationAndKlMode) {
  uint32_t seed = 1;
  for (const LossAggregation mode : kModes) {
    for (const KlLossMode kl : {KlLossMode::kKl, KlLossMode::kMseKl, KlLossMode::kLowVarKl}) {
      GrpoConfig config = with_mode(mode);
      config.kl_loss_mode = kl;
      config.beta = 0.3;
      SCOPED_TRACE(fmt::format("seed {}", seed));
      expect_gradient(config, seed++);
      config.kl_clamp_value = 0.2;
      expect_gradient(config, seed++);
    }
  }
}

TEST(LossGradient, DualClipWeightsAndGates) {
  for (uint32_t seed = 50; seed < 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    GrpoConfig config = with_mode(LossAggregation::kTokenMean);
    config.epsilon = 0.1;
    config.epsilon_high = 0.3;
    config.epsilon_c = 1.2;
    expect_gradient(config, seed);
    config.sampler_is_token = true;
    config.sampler_is_threshold = 1.1;
    config.overlong_loss_masking = true;
    config.seq_logprob_error_threshold = 1.4;
    expect_gradient(config, seed);
  }
}

TEST(LossGradient, EntropyBonusIsAggregatedLikeTheLoss) {
  for (const LossAggregation mode : kModes) {
    GrpoConfig config = with_mode(mode);
    config.entropy_coef = 0.05;
    LossBatch batch = random_batch(7, {4, 6, 2});
    const LossResult got = batch.run(config);
    EXPECT_NEAR(got.sum, objective(config, batch, got, batch.live), 1e-12);
    ASSERT_EQ(got.dentropy.size(), batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      LossBatch moved = batch;
      moved.entropy[i] += 1;
      EXPECT_NEAR(got.dentropy[i], moved.run(config).sum - got.sum, 1e-12) << "token " << i;
    }
    config.entropy_coef = 0;
    EXPECT_TRUE(batch.run(config).dentropy.empty());
  }
}

// Value of the sequence, gradient of the token: the sum of the token gradients is the derivative along a
// common shift.
TEST(LossGradient, GspoTokenMatchesACommonShiftOfTheSequence) {
  GrpoConfig config = with_mode(LossAggregation::kTokenMean);
  config.loss_algo = LossAlgorithm::kGspoToken;
  config.epsilon = 0.3;
  LossBatch batch = random_batch(11, {6, 4, 9}, 0.05);
  const LossResult got = batch.run(config);
  for (int32_t s = 0; s < 3; ++s) {
    LossBatch up = batch;
    LossBatch down = batch;
    double gradient = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      if (batch.sequence[i] != s) continue;
      gradient += got.dlogprobs[i];
      up.live[i] += kStep;
      down.live[i] -= kStep;
    }
    const double difference = (up.run(config).sum - down.run(config).sum) / (2 * kStep);
    EXPECT_NEAR(gradient, difference, kTolerance * (1 + std::abs(difference)));
  }
}

}  // namespace
}  // namespace lathe
