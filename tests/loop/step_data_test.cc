// What a step's metrics say about its trajectories.
#include "lathe/loop/step_data.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

namespace lathe {
namespace {

Trajectory trajectory(double advantage) {
  Trajectory t;
  t.prompt_ids = {1, 2};
  t.completion_ids = {3};
  t.completion_mask = {1};
  t.advantage = {advantage};
  t.group = "g";
  return t;
}

std::map<std::string, double> metrics_of(std::vector<Trajectory> trajectories) {
  RunConfig config;
  config.data.row_length = 64;
  StepBatch batch;
  batch.file = "r.jsonl";
  batch.trajectories = std::move(trajectories);
  const StepData data = build_step_data(config, {}, std::move(batch));
  return {data.metrics.begin(), data.metrics.end()};
}

TEST(StepData, WithoutRewardsTheirMeanIsNotANumber) {
  const auto metrics = metrics_of({trajectory(1), trajectory(-1)});
  EXPECT_TRUE(std::isnan(metrics.at("reward/mean")));
  EXPECT_TRUE(std::isnan(metrics.at("reward/std")));
  EXPECT_EQ(metrics.at("data/trajectories"), 2);
}

TEST(StepData, TheOldestAndNewestPolicyOfWhatTrains) {
  auto all = std::vector<Trajectory>{trajectory(1), trajectory(-1), trajectory(0), trajectory(2)};
  EXPECT_FALSE(metrics_of(all).contains("data/policy_version_min"));
  all[0].policy_version = 7;
  all[2].policy_version = -4;
  all[3].policy_version = 9;
  all[3].status = TrajectoryStatus::kFailed;
  const auto metrics = metrics_of(all);
  EXPECT_EQ(metrics.at("data/policy_version_min"), -4);
  EXPECT_EQ(metrics.at("data/policy_version_max"), 7);
}

}  // namespace
}  // namespace lathe
