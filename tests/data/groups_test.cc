#include "lathe/data/groups.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace lathe {
namespace {

Trajectory member(const std::string& group, std::optional<double> reward,
                  TrajectoryStatus status = TrajectoryStatus::kCompleted) {
  Trajectory t;
  t.prompt_ids = {1};
  t.completion_ids = {2, 3};
  t.completion_mask = {1, 1};
  t.group = group;
  t.reward = reward;
  t.status = status;
  return t;
}

TEST(Groups, InterleavedEqualsSorted) {
  const std::vector<Trajectory> sorted = {member("i:1", 1), member("i:1", 0), member("s:1", 5),
                                          member("s:1", 2)};
  const std::vector<Trajectory> mixed = {sorted[0], sorted[2], sorted[1], sorted[3]};
  const auto a = step_advantages(sorted, {}, nullptr);
  const auto b = step_advantages(mixed, {}, nullptr);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_EQ(a[1], b[2]);
  EXPECT_EQ(a[2], b[1]);
  EXPECT_EQ(a[3], b[3]);
  EXPECT_NEAR(a[0][0], .7071058, 1e-6);
  EXPECT_NEAR(a[3][0], -.7071065, 1e-6);
}

TEST(Groups, FailedMembersLeaveTheStatisticsTruncatedStay) {
  const std::vector<Trajectory> all = {
      member("a", 1), member("a", 0), member("a", 0.5, TrajectoryStatus::kFailed),
      member("a", 1, TrajectoryStatus::kTruncated), member("a", std::nullopt, TrajectoryStatus::kAborted)};
  GroupStats stats;
  const auto advantages = step_advantages(all, {}, &stats);
  EXPECT_NEAR(advantages[0][0], .5773493, 1e-6);
  EXPECT_NEAR(advantages[1][0], -1.1546985, 1e-6);
  EXPECT_EQ(advantages[2], (std::vector<double>{0}));
  EXPECT_NEAR(advantages[3][0], .5773493, 1e-6);
  EXPECT_EQ(advantages[4], (std::vector<double>{0}));
  EXPECT_EQ(stats.rewards, 3);
  EXPECT_NEAR(stats.reward_mean, 2.0 / 3, 1e-12);
  EXPECT_NEAR(stats.reward_std, std::sqrt(1.0 / 3), 1e-12);
}

TEST(Groups, GivenAdvantageWinsOverReward) {
  std::vector<Trajectory> all = {member("a", 1), member("a", 0), member("a", 0)};
  all[0].advantage = {7};
  all[1].advantage = {1, 2};
  GroupStats stats;
  const auto advantages = step_advantages(all, {}, &stats);
  EXPECT_EQ(advantages[0], (std::vector<double>{7}));
  EXPECT_EQ(advantages[1], (std::vector<double>{1, 2}));
  EXPECT_NEAR(advantages[2][0], -.5773493, 1e-6);  // its peers' rewards count
  EXPECT_EQ(stats.groups, 1);
}

TEST(Groups, RewardPartsThatCancelHaveNoSpread) {
  std::vector<Trajectory> all = {member("a", 0.1 + 0.7), member("a", 0.8), member("b", 2), member("b", 3)};
  GroupStats stats;
  const auto advantages = step_advantages(all, {}, &stats);
  EXPECT_EQ(advantages[0][0], 0);
  EXPECT_EQ(advantages[1][0], 0);
  EXPECT_EQ(group_metrics(stats).at("group/zero_std_frac"), 0.5);
}

TEST(Groups, MetricsCountSmallGroupsPartsAndLabels) {
  std::vector<Trajectory> all = {member("a", 1), member("b", 3), member("b", 5),
                                 member("c", 2, TrajectoryStatus::kFailed)};
  all[1].reward_parts = {{"format", 1}};
  all[2].reward_parts = {{"format", 2}};
  all[1].env = all[2].env = "maths";
  GroupStats stats;
  static_cast<void>(step_advantages(all, {}, &stats));
  const auto metrics = group_metrics(stats);
  EXPECT_EQ(metrics.at("group/count"), 2);
  EXPECT_EQ(metrics.at("group/too_small"), 1);
  EXPECT_EQ(metrics.at("group/zero_std_frac"), 0);
  EXPECT_EQ(metrics.at("reward/mean"), 3);
  EXPECT_EQ(metrics.at("reward/std"), 2);
  EXPECT_EQ(metrics.at("reward/min"), 1);
  EXPECT_EQ(metrics.at("reward/max"), 5);
  EXPECT_EQ(metrics.at("reward_part/format"), 1.5);
  EXPECT_EQ(metrics.at("env/maths/reward_mean"), 4);
}

TEST(Groups, NothingIsDefined) {
  GroupStats stats;
  EXPECT_TRUE(step_advantages({}, {}, &stats).empty());
  for (const auto& [name, value] : group_metrics(stats)) {
    if (name.starts_with("reward/")) {
      EXPECT_TRUE(std::isnan(value)) << name;
    } else {
      EXPECT_EQ(value, 0) << name;
    }
  }
}

}  // namespace
}  // namespace lathe
