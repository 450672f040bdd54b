// Seconds of a steady clock: for spans of time, not for dates.
#pragma once

#include <chrono>

namespace lathe {

[[nodiscard]] inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lathe
