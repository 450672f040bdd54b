// Every collective against its plain meaning, on worlds of threads.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "support/run_ranks.h"

#include "mesh/rank_values.h"

namespace lathe::test {
namespace {

constexpr Exchange kAll{.axes = kAxisAll, .phase = Phase::kForward, .tensor = "t"};

std::vector<MeshShape> meshes() {
  return {{1, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 3, 1}, {1, 2, 2, 1}, {1, 2, 2, 2}, {8, 1, 1, 1}};
}

std::vector<AxisSet> axis_sets() {
  return {kAxisAll, kAxisFsdp, kAxisContext, kAxesExperts, kAxisData | kAxisExpert};
}

// Calls test(communicator, exchange) on every rank of every mesh for several groups.
template <typename Test>
void on_all_groups(const Test& test) {
  for (const MeshShape& mesh : meshes()) {
    run_ranks(mesh, [&](Communicator& communicator) {
      for (const AxisSet axes : axis_sets()) {
        test(communicator, Exchange{.axes = axes, .phase = Phase::kForward, .tensor = "t"});
      }
    });
  }
}

template <typename T>
void check_gather(Communicator& communicator, const Exchange& exchange, int64_t elements) {
  const int size = communicator.size(exchange.axes);
  const int index = communicator.index(exchange.axes);
  const FlatShard own = flat_shard(elements, size, index);
  std::vector<T> part = values_of<T>(communicator.rank(), own.size());
  std::vector<T> whole(static_cast<size_t>(elements), T{});
  communicator.all_gather(exchange, view_of(part), view_of(whole));
  const std::vector<int> members = members_of(communicator, exchange.axes);
  for (int i = 0; i < size; ++i) {
    const FlatShard shard = flat_shard(elements, size, i);
    for (int64_t k = shard.begin; k < shard.end; ++k)
      ASSERT_EQ(whole[static_cast<size_t>(k)], value_of<T>(members[static_cast<size_t>(i)], k - shard.begin))
          << "element " << k << " of " << elements;
  }
}

TEST(CollectivesTest, AllGatherPutsPartsInRankOrder) {
  on_all_groups([](Communicator& communicator, const Exchange& exchange) {
    for (const int64_t elements : {0, 1, 3, 5, 64, 1001}) {
      check_gather<float>(communicator, exchange, elements);
      check_gather<uint8_t>(communicator, exchange, elements);  // any type
    }
  });
}

TEST(CollectivesTest, AllGatherInPlace) {
  run_ranks({1, 4, 1, 1}, [](Communicator& communicator) {
    std::vector<float> whole(10, -1);
    const FlatShard own = flat_shard(10, 4, communicator.rank());
    for (int64_t i = own.begin; i < own.end; ++i) whole[static_cast<size_t>(i)] = static_cast<float>(i);
    const View all = view_of(whole);
    communicator.all_gather(kAll, all.rows(own.begin, own.size()), all);
    for (size_t i = 0; i < 10; ++i) EXPECT_EQ(whole[i], static_cast<float>(i));
  });
}

template <typename T>
void check_reduce(Communicator& communicator, const Exchange& exchange, int64_t elements, bool accumulate) {
  const int size = communicator.size(exchange.axes);
  const FlatShard own = flat_shard(elements, size, communicator.index(exchange.axes));
  std::vector<T> whole = values_of<T>(communicator.rank(), elements);
  std::vector<T> part(static_cast<size_t>(own.size()), T{3});
  const ReducePiece piece{
      .whole = view_of(whole), .part = view_of(part), .blocks = 1, .accumulate = accumulate};
  communicator.start_reduce_scatter(exchange, {&piece, 1}).wait();
  const std::vector<int> members = members_of(communicator, exchange.axes);
  for (int64_t k = own.begin; k < own.end; ++k) {
    const T sum = sum_of<T>(members, k);
    ASSERT_EQ(part[static_cast<size_t>(k - own.begin)], accumulate ? T{3} + sum : sum)
        << "element " << k << " of " << elements;
  }
}

TEST(CollectivesTest, ReduceScatterAddsInRankOrder) {
  on_all_groups([](Communicator& communicator, const Exchange& exchange) {
    for (const bool accumulate : {false, true}) {
      for (const int64_t elements : {0, 1, 3, 5, 64, 9001}) {
        check_reduce<float>(communicator, exchange, elements, accumulate);
        check_reduce<double>(communicator, exchange, elements, accumulate);
      }
    }
  });
}

TEST(CollectivesTest, AllReduceGivesEveryRankTheSum) {
  on_all_groups([](Communicator& communicator, const Exchange& exchange) {
    for (const int64_t elements : {1, 3, 64, 4099}) {
      std::vector<float> data = values_of<float>(communicator.rank(), elements);
      communicator.all_reduce(exchange, view_of(data));
      const std::vector<int> members = members_of(communicator, exchange.axes);
      for (int64_t k = 0; k < elements; ++k)
        ASSERT_EQ(data[static_cast<size_t>(k)], sum_of<float>(members, k)) << "element " << k;
    }
  });
}

// Rows of a micro-batch, cut by position.
TEST(CollectivesTest, BlocksAreCutOneByOne) {
  on_all_groups([](Communicator& communicator, const Exchange& exchange) {
    constexpr int64_t kBlocks = 3;
    constexpr int64_t kWidth = 5;
    const int size = communicator.size(exchange.axes);
    const int index = communicator.index(exchange.axes);
    const std::vector<int> members = members_of(communicator, exchange.axes);
    std::vector<float> part = values_of(communicator.rank(), kBlocks * kWidth);
    std::vector<float> whole(static_cast<size_t>(kBlocks * size * kWidth), -1);
    communicator.all_gather(exchange, view_of(part), view_of(whole), kBlocks);
    for (int64_t b = 0; b < kBlocks; ++b) {
      for (int i = 0; i < size; ++i) {
        for (int64_t k = 0; k < kWidth; ++k)
          ASSERT_EQ(whole[static_cast<size_t>((b * size + i) * kWidth + k)],
                    value_of(members[static_cast<size_t>(i)], b * kWidth + k));
      }
    }
    whole = values_of(communicator.rank(), kBlocks * size * kWidth);
    communicator.reduce_scatter(exchange, view_of(whole), view_of(part), kBlocks);
    for (int64_t b = 0; b < kBlocks; ++b) {
      for (int64_t k = 0; k < kWidth; ++k)
        ASSERT_EQ(part[static_cast<size_t>(b * kWidth + k)],
                  sum_of(members, (b * size + index) * kWidth + k));
    }
  });
}

TEST(CollectivesTest, PiecesOfOneExchangeTravelTogether) {
  on_all_groups([](Communicator& communicator, const Exchange& exchange) {
    const int size = communicator.size(exchange.axes);
    const int index = communicator.index(exchange.axes);
    const std::vector<int> members = members_of(communicator, exchange.axes);
    const FlatShard small = flat_shard(3, size, index);
    std::vector<float> a = values_of(communicator.rank(), small.size(), 1);
    std::vector<double> b = values_of<double>(communicator.rank(), 6, 2);
    std::vector<float> whole_a(3);
    std::vector<double> whole_b(static_cast<size_t>(6 * size));
    const std::vector<GatherPiece> gathers{{view_of(a), view_of(whole_a)}, {view_of(b), view_of(whole_b), 2}};
    communicator.start_all_gather(exchange, gathers).wait();
    for (int i = 0; i < size; ++i) {
      const FlatShard shard = flat_shard(3, size, i);
      for (int64_t k = shard.begin; k < shard.end; ++k)
        ASSERT_EQ(whole_a[static_cast<size_t>(k)],
                  value_of(members[static_cast<size_t>(i)], k - shard.begin, 1));
      for (int64_t k = 0; k < 6; ++k)
        ASSERT_EQ(whole_b[static_cast<size_t>((k / 3 * size + i) * 3 + k % 3)],
                  value_of<double>(members[static_cast<size_t>(i)], k, 2));
    }
    whole_a = values_of(communicator.rank(), 3, 4);
    whole_b = values_of<double>(communicator.rank(), 6 * size, 5);
    std::fill(b.begin(), b.end(), 1.0);
    const std::vector<ReducePiece> reductions{{view_of(whole_a), view_of(a)},
                                              {view_of(whole_b), view_of(b), 2, /*accumulate=*/true}};
    communicator.start_reduce_scatter(exchange, reductions).wait();
    for (int64_t k = small.begin; k < small.end; ++k)
      ASSERT_EQ(a[static_cast<size_t>(k - small.begin)], sum_of(members, k, 4));
    for (int64_t k = 0; k < 6; ++k)
      ASSERT_EQ(b[static_cast<size_t>(k)],
                1.0 + sum_of<double>(members, (k / 3 * size + index) * 3 + k % 3, 5));
  });
}

TEST(CollectivesTest, AllToAllTransposes) {
  on_all_groups([](Communicator& communicator, const Exchange& exchange) {
    const int size = communicator.size(exchange.axes);
    const int index = communicator.index(exchange.axes);
    std::vector<float> from = values_of(communicator.rank(), int64_t{4} * size);
    std::vector<float> to(from.size());
    communicator.all_to_all(exchange, view_of(from), view_of(to));
    const std::vector<int> members = members_of(communicator, exchange.axes);
    for (int i = 0; i < size; ++i) {
      for (int64_t k = 0; k < 4; ++k)
        ASSERT_EQ(to[static_cast<size_t>(i * 4 + k)],
                  value_of(members[static_cast<size_t>(i)], index * 4 + k));
    }
  });
}

TEST(CollectivesTest, SendRecvShiftsToNeighbours) {
  on_all_groups([](Communicator& communicator, const Exchange& exchange) {
    const int size = communicator.size(exchange.axes);
    const int index = communicator.index(exchange.axes);
    // Two messages to the next rank (the last one sends to none), one to itself.
    std::vector<float> first = values_of(communicator.rank(), 3, 1);
    std::vector<float> second = values_of(communicator.rank(), 5, 2);
    std::vector<float> got_first(3, -1);
    std::vector<float> got_second(5, -1);
    std::vector<float> own(5, -1);
    std::vector<SendPiece> sends{{index, view_of(second)}};
    std::vector<ReceivePiece> receives{{index, view_of(own)}};
    if (index + 1 < size) {
      sends.push_back({index + 1, view_of(first)});
      sends.push_back({index + 1, view_of(second)});
    }
    if (index > 0) {
      receives.push_back({index - 1, view_of(got_first)});
      receives.push_back({index - 1, view_of(got_second)});
    }
    communicator.send_recv(exchange, sends, receives);
    EXPECT_EQ(own, second);
    const std::vector<int> members = members_of(communicator, exchange.axes);
    if (index == 0) {
      EXPECT_EQ(got_first, std::vector<float>(3, -1));
    } else {
      EXPECT_EQ(got_first, values_of(members[static_cast<size_t>(index - 1)], 3, 1));
      EXPECT_EQ(got_second, values_of(members[static_cast<size_t>(index - 1)], 5, 2));
    }
  });
}

TEST(CollectivesTest, HostValuesAreAddedAndCompared) {
  on_all_groups([](Communicator& communicator, const Exchange& exchange) {
    const std::vector<int> members = members_of(communicator, exchange.axes);
    std::vector<double> sums = values_of<double>(communicator.rank(), 7);
    communicator.all_reduce_sum(exchange, sums);
    for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(sums[static_cast<size_t>(i)], sum_of<double>(members, i));
    std::vector<double> largest{static_cast<double>(communicator.rank()),
                                -static_cast<double>(communicator.rank()) - 1};
    communicator.all_reduce_max(exchange, largest);
    EXPECT_EQ(largest[0], members.back());
    EXPECT_EQ(largest[1], -members.front() - 1);
  });
}

// Whichever rank has it, first, in the middle or last.
TEST(CollectivesTest, NanIsTheLargest) {
  run_ranks({4, 1, 1, 1}, [](Communicator& communicator) {
    for (int who = 0; who < 4; ++who) {
      std::vector<double> value{communicator.rank() == who ? std::numeric_limits<double>::quiet_NaN()
                                                           : static_cast<double>(communicator.rank())};
      communicator.all_reduce_max(kAll, value);
      EXPECT_TRUE(std::isnan(value[0])) << who;
    }
  });
}

// Sums in another order than that of ranks differ in bits: these values show it.
TEST(CollectivesTest, TheOrderOfSumsIsThatOfRanks) {
  const std::vector<float> values{1e8F, 1.0F, -1e8F, 1.0F};
  run_ranks({4, 1, 1, 1}, [&](Communicator& communicator) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<float> whole(8, values[static_cast<size_t>(communicator.rank())]);
      communicator.all_reduce(kAll, view_of(whole));
      EXPECT_EQ(whole, std::vector<float>(8, ((1e8F + 1.0F) + -1e8F) + 1.0F));
    }
  });
}

}  // namespace
}  // namespace lathe::test
