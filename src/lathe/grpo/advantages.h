// Advantages from the rewards of one group (trajectories of one prompt):
//   grpo      (r - mean) / (std + 1e-6), std with n - 1
//   drgrpo    r - mean
//   rloo      r - mean of the others
//   grpo-loo  rloo / (std of the others + 1e-6) where that is real, n > 2
// Statistics run over valid members only; invalid members, and groups with fewer than two valid, get 0.
// Rewards that are equal up to rounding give exactly 0. Rewards are finite at valid members; others may hold
// anything.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lathe/grpo/config.h"

namespace lathe {

[[nodiscard]] std::vector<double> group_advantages(std::span<const double> rewards,
                                                   std::span<const uint8_t> valid,
                                                   AdvantageEstimator estimator);

// Whether the valid rewards differ by more than rounding (1e-12 of the largest).
[[nodiscard]] bool has_reward_spread(std::span<const double> rewards, std::span<const uint8_t> valid);

}  // namespace lathe
