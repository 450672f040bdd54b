// One line of a rollout file: a sampled completion with its reward. c = completion tokens.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lathe {

enum class TrajectoryStatus : uint8_t { kCompleted, kTruncated, kAborted, kFailed };

// Router replay: int16 [tokens, layers, top_k] (tokens = all of the trajectory's, or one fewer); -1 = not
// recorded.
struct RoutedExperts {
  std::vector<int16_t> data;
  int64_t tokens = 0;
  int64_t layers = 0;
  int64_t top_k = 0;
};

struct Trajectory {
  int64_t line = 0;  // 1-based, in its file
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> completion_ids;
  std::vector<uint8_t> completion_mask;  // [c], 1 = scored
  std::optional<double> reward;          // weighted sum when parts were given
  std::map<std::string, double> reward_parts;
  std::vector<double> advantage;         // empty: estimated in the group; [1]: one for all; [c]: per token
  std::string group;                     // groups compare by this; ints and strings differ ("i:7", "s:7")
  std::vector<double> rollout_logprobs;  // [c] or empty; NaN = none at that token
  std::vector<double> old_logprobs;      // [c] or empty; NaN = none
  std::vector<double> ref_logprobs;      // [c] or empty; NaN = none
  double temperature = 1;
  TrajectoryStatus status = TrajectoryStatus::kCompleted;
  std::optional<int64_t> policy_version;
  std::optional<RoutedExperts> routed_experts;
  std::string env;

  [[nodiscard]] int64_t tokens() const {
    return static_cast<int64_t>(prompt_ids.size() + completion_ids.size());
  }
  [[nodiscard]] int64_t scored_tokens() const;
  // Failed and aborted trajectories are scored by `lathe score` but never trained on.
  [[nodiscard]] bool trains() const {
    return status == TrajectoryStatus::kCompleted || status == TrajectoryStatus::kTruncated;
  }
};

}  // namespace lathe
