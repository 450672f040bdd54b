#include "lathe/data/groups.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lathe/grpo/advantages.h"

namespace lathe {
namespace {

bool counts(const Trajectory& t) {
  return t.trains() && t.reward.has_value();
}

void estimate_group(std::span<const Trajectory> all, const std::vector<size_t>& members,
                    const GrpoConfig& config, std::vector<std::vector<double>>& advantages,
                    GroupStats& stats) {
  std::vector<double> rewards;
  std::vector<uint8_t> valid;
  bool estimated = false;
  int64_t valid_count = 0;
  for (const size_t m : members) {
    const bool member_counts = counts(all[m]);
    rewards.push_back(all[m].reward.value_or(0.0));
    valid.push_back(member_counts ? 1 : 0);
    valid_count += member_counts ? 1 : 0;
    estimated = estimated || (all[m].trains() && all[m].advantage.empty());
  }
  const auto estimate = group_advantages(rewards, valid, config.advantage_estimator);
  for (size_t k = 0; k < members.size(); ++k) {
    if (all[members[k]].advantage.empty()) advantages[members[k]] = {estimate[k]};
  }
  if (!estimated) return;
  ++stats.groups;
  if (valid_count < 2) {
    ++stats.too_small;
  } else if (!has_reward_spread(rewards, valid)) {
    ++stats.zero_std;
  }
}

void count_rewards(std::span<const Trajectory> trajectories, GroupStats& stats) {
  std::map<std::string, int64_t> part_count;
  std::map<std::string, int64_t> env_count;
  double sum = 0;
  stats.rewards = 0;
  for (const Trajectory& t : trajectories) {
    if (!counts(t)) continue;
    stats.reward_min = stats.rewards == 0 ? *t.reward : std::min(stats.reward_min, *t.reward);
    stats.reward_max = stats.rewards == 0 ? *t.reward : std::max(stats.reward_max, *t.reward);
    ++stats.rewards;
    sum += *t.reward;
    for (const auto& [name, value] : t.reward_parts) {
      stats.part_mean[name] += value;
      ++part_count[name];
    }
    if (t.env.empty()) continue;
    stats.env_mean[t.env] += *t.reward;
    ++env_count[t.env];
  }
  for (auto& [name, mean] : stats.part_mean) mean /= static_cast<double>(part_count[name]);
  for (auto& [label, mean] : stats.env_mean) mean /= static_cast<double>(env_count[label]);
  if (stats.rewards == 0) return;
  stats.reward_mean = sum / static_cast<double>(stats.rewards);
  double squares = 0;
  for (const Trajectory& t : trajectories) {
    if (counts(t)) squares += (*t.reward - stats.reward_mean) * (*t.reward - stats.reward_mean);
  }
  stats.reward_std = 0;
  if (stats.rewards > 1) stats.reward_std = std::sqrt(squares / static_cast<double>(stats.rewards - 1));
}

}  // namespace

std::vector<std::vector<double>> step_advantages(std::span<const Trajectory> trajectories,
                                                 const GrpoConfig& config, GroupStats* stats) {
  GroupStats counted;
  std::vector<std::vector<double>> advantages(trajectories.size());
  std::map<std::string, std::vector<size_t>> groups;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    advantages[i] = trajectories[i].advantage;
    groups[trajectories[i].group].push_back(i);
  }
  for (const auto& [name, members] : groups)
    estimate_group(trajectories, members, config, advantages, counted);
  count_rewards(trajectories, counted);
  if (stats != nullptr) *stats = counted;
  return advantages;
}

std::map<std::string, double> group_metrics(const GroupStats& stats) {
  std::map<std::string, double> metrics;
  metrics["group/count"] = static_cast<double>(stats.groups);
  metrics["group/zero_std_frac"] =
      stats.groups == 0 ? 0.0 : static_cast<double>(stats.zero_std) / static_cast<double>(stats.groups);
  metrics["group/too_small"] = static_cast<double>(stats.too_small);
  metrics["reward/mean"] = stats.reward_mean;
  metrics["reward/std"] = stats.reward_std;
  metrics["reward/min"] = stats.reward_min;
  metrics["reward/max"] = stats.reward_max;
  for (const auto& [name, mean] : stats.part_mean) metrics["reward_part/" + name] = mean;
  for (const auto& [label, mean] : stats.env_mean) metrics[fmt::format("env/{}/reward_mean", label)] = mean;
  return metrics;
}

}  // namespace lathe
