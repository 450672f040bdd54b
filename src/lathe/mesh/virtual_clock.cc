#include "lathe/mesh/virtual_clock.h"

#include <algorithm>

#include "lathe/core/error.h"

namespace lathe {
namespace {

class ClockQueue final : public Queue {
 public:
  ClockQueue(VirtualClock& clock, double seconds_per_kernel)
      : clock_(clock), seconds_per_kernel_(seconds_per_kernel) {}
  [[nodiscard]] int threads() const override { return 1; }
  void run(int64_t count, Task task, void* context) override {
    for (int64_t i = 0; i < count; ++i) task(context, i, 0);
    clock_.advance(seconds_per_kernel_);
  }
  [[nodiscard]] std::byte* thread_workspace(int thread) override {
    LATHE_CHECK(false, "a queue that keeps a virtual clock computes nothing (thread {})", thread);
    return nullptr;
  }

 private:
  VirtualClock& clock_;
  double seconds_per_kernel_;
};

}  // namespace

double VirtualClock::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

void VirtualClock::advance(double seconds) {
  const std::lock_guard lock(mutex_);
  now_ += seconds;
}

double VirtualClock::transfer(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  link_free_ = std::max(link_free_, now_) + static_cast<double>(bytes) * seconds_per_byte_;
  return link_free_;
}

double VirtualClock::wait_until(double time) {
  const std::lock_guard lock(mutex_);
  const double stood = std::max(0.0, time - now_);
  now_ += stood;
  return stood;
}

std::unique_ptr<Queue> make_clock_queue(VirtualClock& clock, double seconds_per_kernel) {
  return std::make_unique<ClockQueue>(clock, seconds_per_kernel);
}

}  // namespace lathe
