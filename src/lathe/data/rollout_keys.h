// Names of a rollout line's keys: ours, and what other trainers call the same thing.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

struct RolloutKey {
  std::string_view name;  // as it may stand in a file
  std::string_view key;   // ours; empty: known, but only kept
};

// The entry of a name, or nullptr. Names of one key exclude each other on a line.
[[nodiscard]] const RolloutKey* find_rollout_key(std::string_view name);
// Names that mean the group only where nothing says so better (elsewhere they count lines).
[[nodiscard]] bool is_weak_group_name(std::string_view name);
// The nearest known name, or "".
[[nodiscard]] std::string nearest_rollout_key(std::string_view name);

}  // namespace lathe
