#include "lathe/mesh/ledger.h"

#include <gtest/gtest.h>

#include "support/run_ranks.h"

#include "mesh/rank_values.h"

namespace lathe::test {
namespace {

// Starts one exchange of each kind on 4 ranks.
void exchange_all_kinds(Communicator& communicator) {
  const Exchange exchange{.axes = kAxesExperts, .phase = Phase::kRemat, .tensor = "w"};
  const int index = communicator.index(kAxesExperts);
  std::vector<float> whole(103);
  std::vector<float> part(static_cast<size_t>(flat_shard(103, 4, index).size()));
  communicator.all_gather(exchange, view_of(part), view_of(whole));
  communicator.all_gather(exchange, view_of(part), view_of(whole));
  communicator.reduce_scatter(exchange, view_of(whole), view_of(part));
  communicator.all_reduce(exchange, view_of(whole));
  std::vector<float> from(80);
  std::vector<float> to(80);
  communicator.all_to_all(exchange, view_of(from), view_of(to));
  const SendPiece send{(index + 1) % 4, view_of(from)};
  const ReceivePiece receive{(index + 3) % 4, view_of(to)};
  communicator.send_recv(exchange, {&send, 1}, {&receive, 1});
}

TEST(LedgerTest, BytesAreThoseOfTheFormulas) {
  run_ranks({1, 1, 2, 2}, [](Communicator& communicator) {
    exchange_all_kinds(communicator);
    const std::vector<LedgerEntry> entries = communicator.ledger()->entries();
    ASSERT_EQ(entries.size(), 5U);
    const auto check = [&](size_t at, CollectiveKind kind, int64_t count, int64_t result, int64_t wire) {
      EXPECT_EQ(entries[at].kind, kind);
      EXPECT_EQ(entries[at].tensor, "w");
      EXPECT_EQ(entries[at].phase, Phase::kRemat);
      EXPECT_EQ(entries[at].axes, kAxesExperts);
      EXPECT_EQ(entries[at].count, count);
      EXPECT_EQ(entries[at].result_bytes, result);
      EXPECT_EQ(entries[at].wire_bytes, wire);
      EXPECT_GT(entries[at].exposed_s, 0);
      EXPECT_GT(entries[at].wait_s, 0);
    };
    check(0, CollectiveKind::kAllGather, 2, 2 * 103 * 4, 2 * 103 * 4 * 3 / 4);
    check(1, CollectiveKind::kReduceScatter, 1, 103 * 4, 103 * 4 * 3 / 4);
    check(2, CollectiveKind::kAllReduce, 1, 103 * 4, 2 * 103 * 4 * 3 / 4);
    check(3, CollectiveKind::kAllToAll, 1, 80 * 4, 80 * 4 * 3 / 4);
    check(4, CollectiveKind::kSendRecv, 1, 80 * 4, 80 * 4);
  });
}

TEST(LedgerTest, HostValuesCountAsEightBytesEach) {
  run_ranks({1, 4, 1, 1}, [](Communicator& communicator) {
    std::vector<double> values(6);
    communicator.all_reduce_sum({.axes = kAxisFsdp, .phase = Phase::kUpdate, .tensor = "norm"}, values);
    const std::vector<LedgerEntry> entries = communicator.ledger()->entries();
    ASSERT_EQ(entries.size(), 1U);
    EXPECT_EQ(entries[0].kind, CollectiveKind::kAllReduce);
    EXPECT_EQ(entries[0].result_bytes, 48);
    EXPECT_EQ(entries[0].wire_bytes, 2 * 48 * 3 / 4);
  });
}

TEST(LedgerTest, GroupsOfOneRankAreNotCounted) {
  run_ranks({1, 2, 1, 1}, [](Communicator& communicator) {
    const Exchange exchange{.axes = kAxesExperts, .phase = Phase::kForward, .tensor = "w"};
    std::vector<float> part(5, 2);
    std::vector<float> whole(5);
    communicator.all_gather(exchange, view_of(part), view_of(whole));
    EXPECT_EQ(whole, part);
    std::vector<double> value{1};
    communicator.all_reduce_sum(exchange, value);
    EXPECT_TRUE(communicator.ledger()->entries().empty());
  });
}

TEST(LedgerTest, ResetForgets) {
  Ledger ledger;
  ledger.add({.phase = Phase::kForward,
              .tensor = "w",
              .kind = CollectiveKind::kAllGather,
              .axes = kAxisFsdp,
              .count = 1});
  EXPECT_EQ(ledger.entries().size(), 1U);
  ledger.reset();
  EXPECT_TRUE(ledger.entries().empty());
  EXPECT_EQ(axes_text(kAxesDense), "fsdp,context,expert");
}

}  // namespace
}  // namespace lathe::test
