// What runs at the same time, and what happens when a rank fails.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "lathe/core/clock.h"
#include "lathe/core/error.h"
#include "lathe/mesh/ledger.h"

#include "support/run_ranks.h"

#include "mesh/rank_values.h"

namespace lathe::test {
namespace {

Exchange exchange_of(AxisSet axes, Channel channel = Channel::kDevice) {
  return {.axes = axes, .phase = Phase::kBackward, .tensor = "t", .channel = channel};
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// Gathers, reductions and all-reduces of several groups under way at once, waited for in another order than started.
TEST(ExchangeThreadTest, ExchangesOverlap) {
  run_ranks({1, 2, 2, 2}, [](Communicator& communicator) {
    constexpr int kCount = 12;
    constexpr int64_t kElements = 1003;
    const std::vector<AxisSet> axes{kAxisAll, kAxisFsdp, kAxesExperts};
    std::vector<std::vector<float>> wholes(kCount);
    std::vector<std::vector<float>> parts(kCount);
    std::vector<Request> requests(kCount);
    for (int repeat = 0; repeat < 5; ++repeat) {
      for (int i = 0; i < kCount; ++i) {
        const auto at = static_cast<size_t>(i);
        const AxisSet group = axes[at % axes.size()];
        const FlatShard own = flat_shard(kElements, communicator.size(group), communicator.index(group));
        wholes[at] = values_of(communicator.rank(), kElements, i);
        parts[at] = values_of(communicator.rank(), own.size(), i);
        if (i % 4 < 2) {
          requests[at] = communicator.start_all_reduce(exchange_of(group), view_of(wholes[at]));
        } else if (i % 4 == 2) {
          const ReducePiece piece{view_of(wholes[at]), view_of(parts[at])};
          requests[at] = communicator.start_reduce_scatter(exchange_of(group), {&piece, 1});
        } else {
          const GatherPiece piece{view_of(parts[at]), view_of(wholes[at])};
          requests[at] = communicator.start_all_gather(exchange_of(group), {&piece, 1});
        }
      }
      for (int i = kCount - 1; i >= 0; --i) {
        const auto at = static_cast<size_t>(i);
        const AxisSet group = axes[at % axes.size()];
        const std::vector<int> members = members_of(communicator, group);
        const FlatShard own = flat_shard(kElements, communicator.size(group), communicator.index(group));
        requests[at].wait();
        EXPECT_FALSE(requests[at].pending());
        const FlatShard first = flat_shard(kElements, communicator.size(group), 0);
        for (int64_t k = 0; k < first.size(); ++k) {
          if (i % 4 < 2) {
            ASSERT_EQ(wholes[at][static_cast<size_t>(k)], sum_of(members, k, i));
          } else if (i % 4 == 2) {
            if (k >= own.size()) break;
            ASSERT_EQ(parts[at][static_cast<size_t>(k)], sum_of(members, own.begin + k, i));
          } else {
            ASSERT_EQ(wholes[at][static_cast<size_t>(k)], value_of(members.front(), k, i));
          }
        }
      }
    }
  });
}

// The device thread, the host thread and the saver exchange at the same time, each in its own order.
TEST(ExchangeThreadTest, ChannelsDoNotMix) {
  run_ranks({1, 4, 1, 1}, [](Communicator& communicator) {
    const std::vector<int> members = members_of(communicator, kAxisAll);
    const auto work = [&](Channel channel, int salt) {
      for (int i = 0; i < 50; ++i) {
        std::vector<float> data = values_of(communicator.rank(), 37, salt + i);
        communicator.all_reduce(exchange_of(kAxisAll, channel), view_of(data));
        for (int64_t k = 0; k < 37; ++k)
          ASSERT_EQ(data[static_cast<size_t>(k)], sum_of(members, k, salt + i));
      }
    };
    std::thread host([&] { work(Channel::kHost, 1000); });
    std::thread saver([&] { work(Channel::kSaver, 2000); });
    work(Channel::kDevice, 0);
    host.join();
    saver.join();
  });
}

TEST(ExchangeThreadTest, ExchangesGoOnWhileNobodyWaits) {
  run_ranks({1, 2, 1, 1}, [](Communicator& communicator) {
    std::vector<float> data = values_of(communicator.rank(), 100000);
    Request request = communicator.start_all_reduce(exchange_of(kAxisAll), view_of(data));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    request.wait();
    double exposed = 0;
    double waited = 0;
    for (const LedgerEntry& entry : communicator.ledger()->entries()) {
      exposed += entry.exposed_s;
      waited += entry.wait_s;
    }
    EXPECT_LT(exposed, 0.1);
    EXPECT_LT(waited, 0.19);
    EXPECT_GT(waited, 0);
  });
}

TEST(ExchangeThreadTest, BarrierWaitsForAll) {
  std::atomic<int> arrived = 0;
  run_ranks({4, 1, 1, 1}, [&](Communicator& communicator) {
    for (int round = 1; round <= 10; ++round) {
      if (communicator.rank() == round % 4) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++arrived;
      communicator.barrier(Channel::kHost);
      EXPECT_GE(arrived, 4 * round);
      communicator.barrier(Channel::kHost);
    }
  });
}

TEST(ExchangeThreadTest, RequestsWaitWhenTheyGo) {
  run_ranks({2, 1, 1, 1}, [](Communicator& communicator) {
    std::vector<float> data = values_of(communicator.rank(), 5000);
    { const Request request = communicator.start_all_reduce(exchange_of(kAxisAll), view_of(data)); }
    EXPECT_EQ(data[4999], sum_of({0, 1}, 4999));
  });
}

TEST(ExchangeThreadTest, ScratchIsCountedAndFreed) {
  run_ranks_of({1, 4, 1, 1}, [](ThreadWorld& world, int rank) {
    const auto memory = make_host_memory(true);
    const auto communicator = world.communicator(rank, *memory);
    std::vector<float> whole = values_of(rank, 400);
    std::vector<float> part(100);
    communicator->reduce_scatter(exchange_of(kAxisAll), view_of(whole), view_of(part));
    EXPECT_EQ(memory->live().total(), 0);
    EXPECT_EQ(memory->peak().of(MemoryKind::kScratch), 3 * 100 * 4);
    EXPECT_EQ(memory->live_at_peak().front().name, "exchange t");
  });
}

TEST(ExchangeThreadTest, ARankThatThrowsFailsAllAtOnce) {
  const double begin = steady_seconds();
  std::atomic<int> told = 0;
  const std::string error = error_of([&] {
    run_ranks({4, 1, 1, 1}, [&](Communicator& communicator) {
      if (communicator.rank() == 2) throw std::runtime_error("shard 7 is torn");
      std::vector<float> data(100);
      const std::string reason =
          error_of([&] { communicator.all_reduce(exchange_of(kAxisAll), view_of(data)); });
      EXPECT_NE(reason.find("rank 2 failed: shard 7 is torn"), std::string::npos) << reason;
      // Later ones too.
      EXPECT_EQ(error_of([&] { communicator.barrier(Channel::kHost); }), reason);
      ++told;
    });
  });
  EXPECT_EQ(error, "shard 7 is torn");
  EXPECT_EQ(told, 3);
  EXPECT_LT(steady_seconds() - begin, 2);
}

TEST(ExchangeThreadTest, ARankThatEndsEarlyIsNamed) {
  const std::string error = error_of([] {
    run_ranks({1, 3, 1, 1}, [](Communicator& communicator) {
      if (communicator.rank() == 1) return;
      communicator.barrier(Channel::kHost);
    });
  });
  EXPECT_NE(error.find("rank 1 has ended"), std::string::npos) << error;
}

// A thread of the failing rank itself may stand in wait().
TEST(ExchangeThreadTest, FailFreesTheOwnThreads) {
  const std::string error = error_of([] {
    run_ranks({2, 1, 1, 1}, [](Communicator& communicator) {
      if (communicator.rank() == 1) return communicator.barrier(Channel::kHost);
      std::string reason;
      std::thread device([&] {
        std::vector<float> data(100);
        reason = error_of([&] { communicator.all_reduce(exchange_of(kAxisAll), view_of(data)); });
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      communicator.fail("no more data");
      device.join();
      EXPECT_NE(reason.find("no more data"), std::string::npos) << reason;
    });
  });
  EXPECT_NE(error.find("rank 0 failed: no more data"), std::string::npos) << error;
}

TEST(ExchangeThreadTest, DifferentExchangesAreABugThatIsNamed) {
  const std::string error = error_of([] {
    run_ranks({2, 1, 1, 1}, [](Communicator& communicator) {
      std::vector<float> data(communicator.rank() == 0 ? 100 : 200);
      communicator.all_reduce(exchange_of(kAxisAll), view_of(data));
    });
  });
  EXPECT_NE(error.find("bytes"), std::string::npos) << error;
}

}  // namespace
}  // namespace lathe::test
