// Advantages of a step: trajectories grouped by their group, in any order.
//
// A trajectory with an advantage of its own keeps it (one for all tokens, or one per token). The others get
// the estimate of their group: over its members that train and have a reward. Failed and aborted trajectories
// leave the statistics and get 0; truncated ones stay.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lathe/data/trajectory.h"
#include "lathe/grpo/config.h"

namespace lathe {

struct GroupStats {
  int64_t groups = 0;  // with at least one estimated advantage
  int64_t zero_std =
      0;  // of these, groups of two or more valid members whose rewards are equal up to rounding
  int64_t too_small = 0;  // of these, groups with fewer than two valid members
  // Over trajectories that train and have a reward; std with n - 1.
  int64_t rewards = 0;
  // NaN without any; the std of one is 0.
  double reward_mean = std::numeric_limits<double>::quiet_NaN();
  double reward_std = std::numeric_limits<double>::quiet_NaN();
  double reward_min = std::numeric_limits<double>::quiet_NaN();
  double reward_max = std::numeric_limits<double>::quiet_NaN();
  std::map<std::string, double> part_mean;  // by part of a reward object, over trajectories that have it
  std::map<std::string, double> env_mean;   // reward by env label
};

// One vector per trajectory: [1], or [c] where the file gives one per token. stats may be null.
[[nodiscard]] std::vector<std::vector<double>> step_advantages(std::span<const Trajectory> trajectories,
                                                               const GrpoConfig& config, GroupStats* stats);

// group/zero_std_frac (share of groups), group/too_small (number of groups), group/count, reward/mean,
// reward/std, reward/min, reward/max, reward_part/NAME, env/LABEL/reward_mean. adv/* come from the loss (per
// token, loss_stats.h).
[[nodiscard]] std::map<std::string, double> group_metrics(const GroupStats& stats);

}  // namespace lathe
