// When a run ends before its last step.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace lathe {

// --stop-after: after `step` finished steps and `micro_batches` micro-batches of the next one.
struct StopPoint {
  int64_t step = 0;
  int64_t micro_batches = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): the check stumbles over the operator
  [[nodiscard]] auto operator<=>(const StopPoint&) const = default;
};

// "12", "12:3"; nothing for "". Config errors: anything else, "0", a step beyond `run_steps`.
[[nodiscard]] std::optional<StopPoint> parse_stop_after(const std::string& text, int64_t run_steps);

}  // namespace lathe
