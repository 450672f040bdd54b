#include "lathe/grpo/advantages.h"

#include <algorithm>
#include <cmath>

#include "lathe/core/error.h"

namespace lathe {
namespace {

constexpr double kStdFloor = 1e-6;
// Leave-one-out variance below this share of the group's squared spread is rounding, not spread.
constexpr double kRealVariance = 1e-5;
// Equal rewards whose weighted sums differ in the last bits have no spread: without this, AdamW would turn
// the rounding into a full-size step.
constexpr double kRoundingSpread = 1e-12;

double leave_one_out(double centred, double squares, double n, bool scale) {
  const double own = centred * n / (n - 1);
  if (!scale || n <= 2) return own;
  const double variance = (squares - centred * centred * n / (n - 1)) / (n - 2);
  return variance > kRealVariance * squares ? own / (std::sqrt(variance) + kStdFloor) : own;
}

}  // namespace

bool has_reward_spread(std::span<const double> rewards, std::span<const uint8_t> valid) {
  LATHE_CHECK(rewards.size() == valid.size());
  double low = INFINITY;
  double high = -INFINITY;
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (valid[i] == 0) continue;
    low = std::min(low, rewards[i]);
    high = std::max(high, rewards[i]);
  }
  return high - low > kRoundingSpread * std::max(std::abs(low), std::abs(high));
}

std::vector<double> group_advantages(std::span<const double> rewards, std::span<const uint8_t> valid,
                                     AdvantageEstimator estimator) {
  std::vector<double> advantages(rewards.size(), 0.0);
  const auto members =
      static_cast<double>(std::count_if(valid.begin(), valid.end(), [](uint8_t v) { return v != 0; }));
  if (members < 2 || !has_reward_spread(rewards, valid)) return advantages;
  double sum = 0;
  for (size_t i = 0; i < rewards.size(); ++i) sum += valid[i] != 0 ? rewards[i] : 0.0;
  const double mean = sum / members;
  double squares = 0;
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (valid[i] != 0) squares += (rewards[i] - mean) * (rewards[i] - mean);
  }
  const double deviation = std::sqrt(squares / (members - 1));
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (valid[i] == 0) continue;
    const double centred = rewards[i] - mean;
    switch (estimator) {
      case AdvantageEstimator::kGrpo:
        advantages[i] = centred / (deviation + kStdFloor);
        break;
      case AdvantageEstimator::kDrGrpo:
        advantages[i] = centred;
        break;
      case AdvantageEstimator::kRloo:
        advantages[i] = leave_one_out(centred, squares, members, false);
        break;
      case AdvantageEstimator::kGrpoLoo:
        advantages[i] = leave_one_out(centred, squares, members, true);
        break;
    }
  }
  return advantages;
}

}  // namespace lathe
