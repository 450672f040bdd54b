#include "lathe/loop/stop.h"

#include <charconv>
#include <string_view>

#include "lathe/core/error.h"

namespace lathe {
namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::optional<StopPoint> parse_stop_after(const std::string& text, int64_t run_steps) {
  if (text.empty()) return std::nullopt;
  const std::string_view view(text);
  const size_t colon = view.find(':');
  const auto step = whole_number(view.substr(0, colon));
  const auto micro_batches =
      colon == std::string_view::npos ? std::optional<int64_t>(0) : whole_number(view.substr(colon + 1));
  if (!step.has_value() || !micro_batches.has_value() || *step + *micro_batches == 0) {
    config_error("--stop-after", fmt::format("'{}' is neither STEP nor STEP:MICRO_BATCH", text),
                 "12 stops after 12 steps, 12:3 after 12 steps and 3 micro-batches of the next one");
  }
  const StopPoint point{.step = *step, .micro_batches = *micro_batches};
  const int64_t last = point.micro_batches == 0 ? run_steps : run_steps - 1;
  if (point.step > last) {
    config_error("--stop-after",
                 fmt::format("'{}' is beyond the end of the run: run.steps is {}", text, run_steps),
                 "stop earlier, or raise run.steps");
  }
  return point;
}

}  // namespace lathe
