// Work on a thread of its own beside the device thread, one piece at a time: writing a checkpoint.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace lathe {

class BackgroundTask {
 public:
  BackgroundTask() = default;
  ~BackgroundTask() { finish(); }
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // start and rethrow belong to one thread; nothing may be running at start, and the last failure was asked for.
  void start(std::function<void()> work);
  // Until nothing runs; from any thread.
  void wait();
  [[nodiscard]] bool running() const;
  // Throws what the last piece threw, once. Nothing may be running.
  void rethrow();

 private:
  void finish();

  mutable std::mutex mutex_;
  std::condition_variable done_;
  bool running_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace lathe
