#include "lathe/core/parallel.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(ParallelFor, CallsEveryIndexOnce) {
  for (const int threads : {1, 2, 3}) {
    const auto queue = make_queue(threads);
    EXPECT_EQ(queue->threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 100, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      parallel_for(*queue, count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (const auto& n : calls) ASSERT_EQ(n, 1);
    }
    parallel_for(*queue, -1, [&](int64_t) { FAIL(); });
  }
}

TEST(ParallelFor, WritesAreSeenAfterwards) {
  const auto queue = make_queue(2);
  std::vector<int64_t> values(1000);
  for (int round = 0; round < 100; ++round) {
    parallel_for(*queue, 1000, [&](int64_t i) { values[static_cast<size_t>(i)] += i; });
  }
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], 100 * i);
}

TEST(ParallelFor, WorkspacesBelongToOneThread) {
  const auto queue = make_queue(3);
  std::atomic<int> wrong = 0;
  parallel_for(*queue, 200, [&](int64_t i, int thread) {
    if (thread < 0 || thread >= 3) {
      ++wrong;
      return;
    }
    std::byte* workspace = queue->thread_workspace(thread);
    std::memset(workspace, static_cast<int>(i % 256), 4096);
    for (int64_t j = 0; j < 4096; ++j) {
      if (workspace[j] != static_cast<std::byte>(i % 256)) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Queue, WorkspacesAreAlignedAndApart) {
  const auto queue = make_queue(2);
  std::vector<std::byte*> blocks{queue->thread_workspace(0), queue->thread_workspace(1)};
  for (std::byte* block : blocks) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0U);
    block[Queue::kThreadWorkspaceBytes - 1] = std::byte{1};
  }
  EXPECT_GE(std::abs(blocks[0] - blocks[1]), Queue::kThreadWorkspaceBytes);
  EXPECT_EQ(queue->thread_workspace(1), blocks[1]);
}

TEST(Queue, WhatATaskThrowsReachesTheCallerAndTheNextCallWorks) {
  for (const int threads : {1, 4}) {
    const std::unique_ptr<Queue> queue = make_queue(threads);
    for (const int64_t thrower : {0, 99}) {
      EXPECT_THROW(parallel_for(*queue, 100,
                                [&](int64_t i) {
                                  if (i == thrower) throw std::runtime_error("broken");
                                }),
                   std::runtime_error);
      std::atomic<int64_t> sum = 0;
      parallel_for(*queue, 100, [&](int64_t i) { sum += i; });
      EXPECT_EQ(sum, 4950);
    }
  }
}

TEST(AvailableCores, IsAtLeastOne) {
  EXPECT_GE(available_cores(), 1);
}

}  // namespace
}  // namespace lathe
