#include "lathe/mesh/plan_communicator.h"

#include <gtest/gtest.h>

#include "lathe/kernels/device.h"
#include "lathe/mesh/ledger.h"

#include "support/run_ranks.h"

#include "mesh/rank_values.h"

namespace lathe::test {
namespace {

constexpr Exchange kWeights{.axes = kAxisFsdp, .phase = Phase::kForward, .tensor = "w"};

// Exchanges of every kind with tensors of the memory given, whatever it holds.
void exchange_all(Communicator& communicator, DeviceMemory& memory) {
  const auto tensor = [&](int64_t elements) {
    return memory.allocate(DType::kF32, {elements}, MemoryKind::kActivations, "x");
  };
  const int size = communicator.size(kAxesDense);
  const Exchange exchange{.axes = kAxesDense, .phase = Phase::kForward, .tensor = "w"};
  const FlatShard own = flat_shard(1003, size, communicator.index(kAxesDense));
  const Tensor whole = tensor(1003);
  const Tensor part = tensor(own.size());
  const Tensor other = tensor(int64_t{12} * size);
  const Tensor same = tensor(int64_t{12} * size);
  communicator.all_gather(exchange, part, whole);
  communicator.reduce_scatter(exchange, whole, part);
  communicator.all_reduce(exchange, whole);
  communicator.all_to_all(exchange, other, same);
  const int index = communicator.index(kAxesDense);
  const SendPiece send{(index + 1) % size, other};
  const ReceivePiece receive{(index + size - 1) % size, same};
  communicator.send_recv(exchange, {&send, 1}, {&receive, 1});
  std::vector<double> values{1, 2};
  communicator.all_reduce_sum(exchange, values);
  communicator.all_reduce_max(exchange, values);
  communicator.barrier(Channel::kDevice);
}

TEST(PlanCommunicatorTest, CountsWhatRanksExchangeAndHold) {
  const MeshShape mesh{2, 2, 1, 3};
  run_ranks_of(mesh, [&](ThreadWorld& world, int rank) {
    const auto memory = make_host_memory(true);
    const auto communicator = world.communicator(rank, *memory);
    exchange_all(*communicator, *memory);

    const auto counting = make_counting_memory();
    const auto plan = make_plan_communicator(mesh, rank, *counting);
    exchange_all(*plan, *counting);

    EXPECT_EQ(memory->peak().bytes, counting->peak().bytes);
    EXPECT_EQ(counting->live().total(), 0);
    const std::vector<LedgerEntry> real = communicator->ledger()->entries();
    const std::vector<LedgerEntry> planned = plan->ledger()->entries();
    ASSERT_EQ(real.size(), planned.size());
    for (size_t i = 0; i < real.size(); ++i) {
      EXPECT_EQ(real[i].kind, planned[i].kind);
      EXPECT_EQ(real[i].count, planned[i].count);
      EXPECT_EQ(real[i].result_bytes, planned[i].result_bytes);
      EXPECT_EQ(real[i].wire_bytes, planned[i].wire_bytes);
    }
  });
}

// 1 s per kernel, 4 s per gather of 4 ranks.
struct ClockedRank {
  VirtualClock clock{4.0 / 300};
  Device device{DeviceOptions{
      .name = "plan", .threads = 1, .isa = Isa::kAvx2, .poison = false, .float_type = DType::kF32}};
  std::unique_ptr<Communicator> communicator =
      make_plan_communicator({1, 4, 1, 1}, 1, *device.memory, &clock);
  Tensor whole = device.scratch(100, "whole");
  Tensor part = device.scratch(25, "part");

  ClockedRank() { device.queue = make_clock_queue(clock, 1.0); }
  Request gather() {
    const GatherPiece piece{part, whole};
    return communicator->start_all_gather(kWeights, {&piece, 1});
  }
  void kernels(int count) {
    for (int i = 0; i < count; ++i) device.kernels.fill(*device.queue, 0, whole);
  }
  LedgerEntry total() { return communicator->ledger()->entries().at(0); }
};

TEST(PlanCommunicatorTest, AWaitIsExposedForWhatKernelsLeave) {
  ClockedRank rank;
  Request request = rank.gather();
  rank.kernels(3);
  request.wait();
  EXPECT_DOUBLE_EQ(rank.clock.now(), 4);
  EXPECT_DOUBLE_EQ(rank.total().exposed_s, 1);
  EXPECT_DOUBLE_EQ(rank.total().wait_s, 4);
  request = rank.gather();
  rank.kernels(6);
  request.wait();  // long over
  EXPECT_DOUBLE_EQ(rank.clock.now(), 10);
  EXPECT_DOUBLE_EQ(rank.total().exposed_s, 1);
}

TEST(PlanCommunicatorTest, TransfersFollowEachOtherOnTheLink) {
  ClockedRank rank;
  Request first = rank.gather();
  Request second = rank.gather();
  second.wait();
  EXPECT_DOUBLE_EQ(rank.clock.now(), 8);
  first.wait();
  EXPECT_DOUBLE_EQ(rank.clock.now(), 8);
  EXPECT_DOUBLE_EQ(rank.total().wait_s, 4 + 8);
  rank.kernels(2);
  rank.gather().wait();  // the link was free since 8
  EXPECT_DOUBLE_EQ(rank.clock.now(), 14);
}

// A gather one layer ahead hides behind the kernels of the layer before; without it everything is exposed.
TEST(PlanCommunicatorTest, GatheringAheadHidesTransfers) {
  constexpr int kLayers = 10;
  ClockedRank ahead;
  Request next = ahead.gather();
  for (int layer = 0; layer < kLayers; ++layer) {
    next.wait();
    if (layer + 1 < kLayers) next = ahead.gather();
    ahead.kernels(5);
  }
  EXPECT_DOUBLE_EQ(ahead.total().exposed_s, 4);  // the first one
  EXPECT_DOUBLE_EQ(ahead.clock.now(), 4 + 5 * kLayers);
  ClockedRank behind;
  for (int layer = 0; layer < kLayers; ++layer) {
    behind.gather().wait();
    behind.kernels(5);
  }
  EXPECT_DOUBLE_EQ(behind.total().exposed_s, 4 * kLayers);
}

TEST(SoloCommunicatorTest, CopiesWhatLiesElsewhere) {
  const auto solo = make_solo_communicator();
  std::vector<float> from = values_of(0, 6);
  std::vector<float> to(6);
  solo->all_gather(kWeights, view_of(from), view_of(to), 2);
  EXPECT_EQ(to, from);
  const ReducePiece piece{.whole = view_of(from), .part = view_of(to), .blocks = 1, .accumulate = true};
  solo->start_reduce_scatter(kWeights, {&piece, 1}).wait();
  EXPECT_EQ(to[5], from[5] + from[5]);
  std::fill(to.begin(), to.end(), 0.0F);
  solo->all_to_all(kWeights, view_of(from), view_of(to));
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace lathe::test
