#include "lathe/engine/background_task.h"

#include <system_error>
#include <utility>

#include "lathe/core/error.h"

namespace lathe {

void BackgroundTask::start(std::function<void()> work) {
  finish();
  LATHE_CHECK(error_ == nullptr, "a failure that nobody asked for");
  running_ = true;
  auto run = [this, work = std::move(work)]() mutable {
    std::exception_ptr error;
    try {
      work();
    } catch (...) {  // NOLINT: handed to the thread that asks
      error = std::current_exception();
    }
    work = nullptr;  // frees what it captured before it counts as done
    const std::lock_guard lock(mutex_);
    error_ = error;
    running_ = false;
    done_.notify_all();
  };
  try {
    thread_ = std::thread(std::move(run));
  } catch (const std::system_error& e) {
    running_ = false;
    retryable_error("checkpoint", fmt::format("no thread can be started to write it: {}", e.what()),
                    "allow this process more threads");
  }
}

void BackgroundTask::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return !running_; });
}

bool BackgroundTask::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

void BackgroundTask::finish() {
  wait();
  if (thread_.joinable()) thread_.join();
}

void BackgroundTask::rethrow() {
  finish();
  if (const std::exception_ptr error = std::exchange(error_, nullptr); error != nullptr) {
    std::rethrow_exception(error);
  }
}

}  // namespace lathe
