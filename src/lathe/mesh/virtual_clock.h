// Time that is counted instead of measured: so much per kernel, so much per byte that a rank sends. With it a rehearsal on
// the plan device says what is exposed of each exchange, the same on every machine and every run.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "lathe/core/parallel.h"

namespace lathe {

// One rank: kernels follow each other, transfers follow each other on one link, both at the same time. Thread-safe.
class VirtualClock {
 public:
  explicit VirtualClock(double seconds_per_byte) : seconds_per_byte_(seconds_per_byte) {}

  [[nodiscard]] double now() const;
  // Somebody computes.
  void advance(double seconds);
  // A transfer that starts now, or when the link is free; returns when it ends.
  [[nodiscard]] double transfer(int64_t bytes);
  // Stands still until `time`; returns for how long.
  double wait_until(double time);

 private:
  const double seconds_per_byte_;
  mutable std::mutex mutex_;
  double now_ = 0;
  double link_free_ = 0;
};

// For Device::queue of a plan device: every kernel takes this long on the clock, which outlives the queue.
[[nodiscard]] std::unique_ptr<Queue> make_clock_queue(VirtualClock& clock, double seconds_per_kernel);

}  // namespace lathe
