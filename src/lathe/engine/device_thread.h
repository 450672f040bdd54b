// The device thread: the only thread that runs kernels. Work is queued in order; at most `max_inflight` computations
// wait or run, a further one blocks its caller. The first exception stops the queue and is thrown to the next caller.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "lathe/core/clock.h"

namespace lathe {

class DeviceThread {
 public:
  explicit DeviceThread(int max_inflight);
  ~DeviceThread();  // drops what has not started
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  // A computation that counts as in flight.
  void submit(std::function<void()> work);
  // Queues without counting (the optimizer step) ...
  void submit_uncounted(std::function<void()> work);
  // ... and waits for everything queued; returns the seconds waited.
  double wait();
  // Runs work on the device thread after everything queued, and returns when it is done.
  void run(std::function<void()> work);

  // Seconds without queued work since the last call of this.
  double take_idle_seconds();
  // Work run while `excluded` is set does not count as idle time (checkpoints).
  void exclude_idle(bool excluded);

 private:
  struct Item {
    std::function<void()> work;
    bool counted;
  };
  void loop();
  void rethrow();

  const int max_inflight_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  int inflight_ = 0;
  bool busy_ = false;
  bool stop_ = false;
  bool idle_excluded_ = false;
  double idle_s_ = 0;
  double idle_since_ = 0;  // < 0 while busy
  std::exception_ptr error_;
  std::thread thread_;
};

// Idle time does not count while this lives.
class IdleExcluded {
 public:
  explicit IdleExcluded(DeviceThread& thread) : thread_(thread) { thread_.exclude_idle(true); }
  ~IdleExcluded() { thread_.exclude_idle(false); }
  IdleExcluded(const IdleExcluded&) = delete;
  IdleExcluded& operator=(const IdleExcluded&) = delete;

 private:
  DeviceThread& thread_;
};

}  // namespace lathe
