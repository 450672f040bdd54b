// What can be refused about a step's trajectories before any work: data errors that name file and line.
// Trajectories that are never trained on (failed, aborted) are not looked at.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lathe/data/trajectory.h"
#include "lathe/grpo/config.h"

namespace lathe {

// A gate, weight or use_rollout_logps without rollout log-probs; beta without reference log-probs (unless
// reference: initial scores them).
void check_loss_fields(const GrpoConfig& config, std::span<const Trajectory> trajectories,
                       const std::string& file);

// Trajectories longer than the row: how many, and the first one's line.
void check_row_length(std::span<const Trajectory> trajectories, int64_t row_length, const std::string& file);

}  // namespace lathe
