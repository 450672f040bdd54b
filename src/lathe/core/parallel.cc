#include "lathe/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

#include "lathe/core/cgroup.h"
#include "lathe/core/error.h"

namespace lathe {
namespace {

// Calls follow each other within microseconds, so threads look for the next one for a moment before they sleep; not
// for long, since other processes want the cores too.
constexpr int kSpins = 1000;

template <typename T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    __builtin_ia32_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

class ThreadQueue final : public Queue {
 public:
  explicit ThreadQueue(int threads) : threads_(threads) {
    for (int t = 0; t < threads; ++t) {
      auto* block = static_cast<std::byte*>(std::aligned_alloc(64, kThreadWorkspaceBytes));
      if (block == nullptr) throw std::bad_alloc();
      workspaces_.emplace_back(block);
    }
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
  }

  ~ThreadQueue() override {
    stop_.store(true, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  [[nodiscard]] int threads() const override { return threads_; }
  [[nodiscard]] std::byte* thread_workspace(int thread) override {
    return workspaces_[static_cast<size_t>(thread)].get();
  }

  void run(int64_t count, Task task, void* context) override {
    if (threads_ == 1 || count == 1) {
      for (int64_t i = 0; i < count; ++i) task(context, i, 0);
      return;
    }
    task_ = task;
    context_ = context;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(threads_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    drain(0);
    for (int left = busy_.load(std::memory_order_acquire); left != 0;
         left = busy_.load(std::memory_order_acquire)) {
      wait_while(busy_, left);
    }
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };

  void drain(int thread) {
    for (;;) {
      const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count_) return;
      try {
        task_(context_, index, thread);
      } catch (...) {  // NOLINT: thrown again by run(), when no thread uses the caller's context any more
        const std::lock_guard lock(error_mutex_);
        if (error_ == nullptr) error_ = std::current_exception();
        next_.store(count_, std::memory_order_relaxed);
      }
    }
  }

  void work(int thread) {
    uint64_t seen = 0;
    for (;;) {
      wait_while(round_, seen);
      seen = round_.load(std::memory_order_acquire);
      if (stop_.load(std::memory_order_relaxed)) return;
      drain(thread);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
    }
  }

  int threads_;
  std::vector<std::unique_ptr<std::byte, Free>> workspaces_;
  // Of the call in progress; written before round_ is, read after.
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_ = 0;
  std::atomic<int> busy_ = 0;
  std::atomic<uint64_t> round_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex error_mutex_;
  std::exception_ptr error_;  // the first one of the call
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<Queue> make_queue(int threads) {
  LATHE_CHECK(threads >= 1, "{} threads", threads);
  return std::make_unique<ThreadQueue>(threads);
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = std::max(CPU_COUNT(&set), 1);
  const auto limit = cgroup_cpu_limit("/sys/fs/cgroup", "/proc/self/cgroup");
  return limit ? std::clamp(static_cast<int>(std::ceil(std::min(*limit, 1e6))), 1, count) : count;
}

}  // namespace lathe
