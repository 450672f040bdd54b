#include "lathe/engine/device_thread.h"

#include <utility>

namespace lathe {

DeviceThread::DeviceThread(int max_inflight)
    : max_inflight_(max_inflight), idle_since_(steady_seconds()), thread_([this] { loop(); }) {}

DeviceThread::~DeviceThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceThread::rethrow() {
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void DeviceThread::submit(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return inflight_ < max_inflight_ || error_ != nullptr; });
  rethrow();
  ++inflight_;
  queue_.push_back({std::move(work), true});
  changed_.notify_all();
}

void DeviceThread::submit_uncounted(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  rethrow();
  queue_.push_back({std::move(work), false});
  changed_.notify_all();
}

double DeviceThread::wait() {
  const double start = steady_seconds();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return (queue_.empty() && !busy_) || error_ != nullptr; });
  rethrow();
  return steady_seconds() - start;
}

void DeviceThread::run(std::function<void()> work) {
  submit_uncounted(std::move(work));
  wait();
}

double DeviceThread::take_idle_seconds() {
  const std::lock_guard lock(mutex_);
  const double now = steady_seconds();
  if (idle_since_ >= 0) {
    if (!idle_excluded_) idle_s_ += now - idle_since_;
    idle_since_ = now;
  }
  return std::exchange(idle_s_, 0);
}

void DeviceThread::exclude_idle(bool excluded) {
  const std::lock_guard lock(mutex_);
  const double now = steady_seconds();
  if (idle_since_ >= 0) {
    if (!idle_excluded_) idle_s_ += now - idle_since_;
    idle_since_ = now;
  }
  idle_excluded_ = excluded;
}

void DeviceThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    if (!idle_excluded_) idle_s_ += steady_seconds() - idle_since_;
    idle_since_ = -1;
    lock.unlock();
    std::exception_ptr error;
    try {
      item.work();
    } catch (...) {  // NOLINT: handed to the thread that waits
      error = std::current_exception();
    }
    item.work = nullptr;  // frees what it captured before it counts as done
    lock.lock();
    busy_ = false;
    if (item.counted) --inflight_;
    idle_since_ = steady_seconds();
    if (error != nullptr) {
      error_ = error;
      queue_.clear();
      inflight_ = 0;
    }
    changed_.notify_all();
  }
}

}  // namespace lathe
