#include "lathe/engine/device_thread.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lathe {
namespace {

// Lets work on the device thread wait for the test.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST(DeviceThread, RunsInOrder) {
  DeviceThread thread(2);
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) thread.submit([&order, i] { order.push_back(i); });
  thread.wait();
  ASSERT_EQ(order.size(), 20U);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(DeviceThread, HoldsAtMostTwoComputationsInFlight) {
  DeviceThread thread(2);
  Gate gate;
  std::atomic<int> submitted = 0;
  std::thread host([&] {
    for (int i = 0; i < 3; ++i) {
      thread.submit([&gate] { gate.wait(); });
      ++submitted;
    }
  });
  while (submitted < 2) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_EQ(submitted, 2);
  gate.open();
  host.join();
  thread.wait();
  EXPECT_EQ(submitted, 3);
}

TEST(DeviceThread, TheFirstErrorReachesTheNextCallerAndStopsTheQueue) {
  DeviceThread thread(2);
  bool ran = false;
  thread.submit_uncounted([] { throw std::runtime_error("broken"); });
  EXPECT_THROW(thread.wait(), std::runtime_error);
  EXPECT_THROW(thread.submit([&ran] { ran = true; }), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST(DeviceThread, CountsIdleTimeOnly) {
  DeviceThread thread(2);
  static_cast<void>(thread.take_idle_seconds());
  thread.submit([] {
    const double start = steady_seconds();
    while (steady_seconds() - start < 0.05) {
    }
  });
  thread.wait();
  EXPECT_LT(thread.take_idle_seconds(), 0.04);
}

}  // namespace
}  // namespace lathe
