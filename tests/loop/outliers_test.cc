#include "lathe/loop/outliers.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Metrics = std::vector<std::pair<std::string, double>>;

// Mean 1, deviation about 0.1.
double usual(int64_t step) {
  return step % 2 == 0 ? 1.1 : 0.9;
}

OutlierWatch after(int64_t steps, const std::string& metric) {
  OutlierWatch watch;
  for (int64_t step = 1; step <= steps; ++step) {
    EXPECT_TRUE(watch.check(step, {{metric, usual(step)}}).empty()) << step;
  }
  return watch;
}

TEST(Outliers, NamesStepMetricValueAndWhatWasUsual) {
  OutlierWatch watch = after(10, "optim/grad_norm");
  const auto lines = watch.check(11, {{"perf/tokens_per_s", 1e9}, {"optim/grad_norm", 7.5}});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(
      lines[0],
      "step 11: optim/grad_norm is 7.5, the 10 steps before it had 1 with a deviation of 0.11: look at this "
      "step's rollouts; optimizer.spike_window skips such steps, a lower learning rate avoids them");
}

TEST(Outliers, SixDeviationsAreTheBorder) {
  const double deviation = 0.1 * std::sqrt(10.0 / 9.0);
  EXPECT_TRUE(after(10, "mismatch/kl").check(11, {{"mismatch/kl", 1 + 5.9 * deviation}}).empty());
  EXPECT_EQ(after(10, "mismatch/kl").check(11, {{"mismatch/kl", 1 + 6.1 * deviation}}).size(), 1U);
}

TEST(Outliers, NothingIsSaidBeforeEightValues) {
  EXPECT_TRUE(after(7, "policy/loss").check(8, {{"policy/loss", 1e6}}).empty());
  EXPECT_EQ(after(8, "policy/loss").check(9, {{"policy/loss", 1e6}}).size(), 1U);
}

TEST(Outliers, OnlyTheLossMayBeTooLow) {
  EXPECT_EQ(after(10, "policy/loss").check(11, {{"policy/loss", -5}}).size(), 1U);
  EXPECT_TRUE(after(10, "optim/grad_norm").check(11, {{"optim/grad_norm", -5}}).empty());
  EXPECT_TRUE(after(10, "mismatch/kl").check(11, {{"mismatch/kl", -5}}).empty());
}

TEST(Outliers, RoundingAroundAConstantIsNone) {
  OutlierWatch watch;
  for (int64_t step = 1; step <= 10; ++step) {
    static_cast<void>(watch.check(step, {{"policy/loss", 0}, {"optim/grad_norm", 2}}));
  }
  EXPECT_TRUE(watch.check(11, {{"policy/loss", 5e-6}, {"optim/grad_norm", 2.1}}).empty());
  EXPECT_EQ(watch.check(12, {{"policy/loss", 1e-3}, {"optim/grad_norm", 3}}).size(), 2U);
}

// The values after a spike must not be judged by a window that a NaN or an infinity spoilt.
TEST(Outliers, WhatIsNotFiniteNeverJoins) {
  OutlierWatch watch = after(10, "optim/grad_norm");
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(watch.check(11, {{"optim/grad_norm", value}}).empty());
  }
  EXPECT_EQ(watch.windows().at("optim/grad_norm").size(), 10U);
  EXPECT_EQ(watch.check(12, {{"optim/grad_norm", 100}}).size(), 1U);
}

TEST(Outliers, ANewLevelIsReportedWhenItBeginsAndNotForEver) {
  OutlierWatch watch = after(40, "optim/grad_norm");
  size_t lines = 0;
  for (int64_t step = 41; step <= 80; ++step) {
    lines += watch.check(step, {{"optim/grad_norm", 10 * usual(step)}}).size();
  }
  EXPECT_GE(lines, 1U);
  EXPECT_LE(lines, 2U);
}

TEST(Outliers, TheWindowKeepsTheLast32) {
  const std::vector<double> window = after(50, "policy/loss").windows().at("policy/loss");
  ASSERT_EQ(window.size(), 32U);
  EXPECT_EQ(window.front(), usual(19));
  EXPECT_EQ(window.back(), usual(50));
}

TEST(Outliers, GoesOnWithTheSameLinesAfterARestore) {
  OutlierWatch straight = after(20, "mismatch/kl");
  OutlierWatch resumed;
  resumed.restore(straight.windows());
  for (int64_t step = 21; step <= 60; ++step) {
    const Metrics metrics{{"mismatch/kl", step % 13 == 0 ? 9.0 : usual(step)}};
    EXPECT_EQ(resumed.check(step, metrics), straight.check(step, metrics)) << step;
  }
  EXPECT_EQ(resumed.windows(), straight.windows());
}

TEST(Outliers, ARestoreTakesNoUnknownNamesAndNothingThatIsNotFinite) {
  OutlierWatch watch;
  watch.restore({{"other", {1, 2}}, {"policy/loss", {1, std::nan(""), 2}}});
  const std::map<std::string, std::vector<double>> expected{{"policy/loss", {1, 2}}};
  EXPECT_EQ(watch.windows(), expected);
}

}  // namespace
}  // namespace lathe
