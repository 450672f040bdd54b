#include "lathe/grpo/advantages.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Estimator = AdvantageEstimator;

void expect_advantages(const std::vector<double>& rewards, Estimator estimator,
                       const std::vector<double>& expected, std::vector<uint8_t> valid = {}) {
  if (valid.empty()) valid.assign(rewards.size(), 1);
  const auto got = group_advantages(rewards, valid, estimator);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6) << "member " << i;
}

TEST(Advantages, GrpoMatchesGoldenValues) {
  expect_advantages({1, 0, 0, 1}, Estimator::kGrpo, {.8660239, -.8660239, -.8660239, .8660239});
  expect_advantages({1, 0, 0, 0}, Estimator::kGrpo, {1.4999970, -.4999990, -.4999990, -.4999990});
  expect_advantages({3, 3, 3, 3}, Estimator::kGrpo, {0, 0, 0, 0});
  expect_advantages({1, 0}, Estimator::kGrpo, {.7071058, -.7071058});
}

TEST(Advantages, StatisticsRunOverValidMembersOnly) {
  expect_advantages({1, 0, .5, 1}, Estimator::kGrpo, {.5773493, -1.1546985, 0, .5773493}, {1, 1, 0, 1});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_advantages({1, 0, nan, 1}, Estimator::kGrpo, {.5773493, -1.1546985, 0, .5773493}, {1, 1, 0, 1});
  expect_advantages({1, 0, .5, 1}, Estimator::kGrpo, {0, 0, 0, 0}, {1, 0, 0, 0});
}

TEST(Advantages, LeaveOneOutMatchesGoldenValues) {
  expect_advantages({1, 0, 0, 1}, Estimator::kGrpoLoo, {1.1546985, -1.1546985, -1.1546985, 1.1546985});
  expect_advantages({1, 0, 0, 0}, Estimator::kGrpoLoo, {1.0, -.5773493, -.5773493, -.5773493});
  expect_advantages({1, 0}, Estimator::kGrpoLoo, {1, -1});
  expect_advantages({1, 2, 3}, Estimator::kRloo, {-1.5, 0, 1.5});
  expect_advantages({4, 5, 6}, Estimator::kRloo, {-1.5, 0, 1.5});
  expect_advantages({7}, Estimator::kRloo, {0});
}

TEST(Advantages, DrGrpoOnlyCentres) {
  expect_advantages({1, 0, 0, 1}, Estimator::kDrGrpo, {.5, -.5, -.5, .5});
}

TEST(Advantages, RewardsEqualUpToRoundingGiveExactlyZero) {
  const std::vector<double> rewards = {0.1 + 0.7, 0.8, 0.3 + 0.5};
  ASSERT_NE(rewards[0], rewards[1]);
  const std::vector<uint8_t> valid(3, 1);
  for (const Estimator e : {Estimator::kGrpo, Estimator::kDrGrpo, Estimator::kRloo, Estimator::kGrpoLoo}) {
    for (const double a : group_advantages(rewards, valid, e)) EXPECT_EQ(a, 0);
  }
}

TEST(Advantages, SumToZero) {
  const std::vector<double> rewards = {.3, -1.2, 4, .25, 17};
  const std::vector<uint8_t> valid(5, 1);
  for (const Estimator e : {Estimator::kGrpo, Estimator::kDrGrpo, Estimator::kRloo}) {
    double sum = 0;
    for (const double a : group_advantages(rewards, valid, e)) sum += a;
    EXPECT_NEAR(sum, 0, 1e-12);
  }
}

}  // namespace
}  // namespace lathe
