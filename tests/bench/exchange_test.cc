#include "lathe/bench/exchange.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/run_ranks.h"

namespace lathe::test {
namespace {

constexpr int kRanks = 3;

ExchangeBenchOptions quick() {
  return {.bytes = 4000, .isa = chosen_isa(), .repeats = 1};
}

// What rank 1 gets in an all-to-all is wrong in one place.
class Spoiled final : public Communicator {
 public:
  explicit Spoiled(Communicator& inner) : inner_(inner) {}
  [[nodiscard]] const MeshShape& mesh() const override { return inner_.mesh(); }
  [[nodiscard]] int rank() const override { return inner_.rank(); }
  Request start_all_gather(const Exchange& exchange, std::span<const GatherPiece> pieces) override {
    return inner_.start_all_gather(exchange, pieces);
  }
  Request start_reduce_scatter(const Exchange& exchange, std::span<const ReducePiece> pieces) override {
    return inner_.start_reduce_scatter(exchange, pieces);
  }
  Request start_all_reduce(const Exchange& exchange, View data) override {
    return inner_.start_all_reduce(exchange, data);
  }
  Request start_all_to_all(const Exchange& exchange, ConstView from, View to) override {
    inner_.all_to_all(exchange, from, to);
    if (rank() == 1) reinterpret_cast<float*>(to.data)[5] = -1;
    return {};
  }
  Request start_send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                          std::span<const ReceivePiece> receives) override {
    return inner_.start_send_recv(exchange, sends, receives);
  }
  void all_reduce_sum(const Exchange& exchange, std::span<double> values) override {
    inner_.all_reduce_sum(exchange, values);
  }
  void all_reduce_max(const Exchange& exchange, std::span<double> values) override {
    inner_.all_reduce_max(exchange, values);
  }
  void barrier(Channel channel) override { inner_.barrier(channel); }
  [[nodiscard]] Ledger* ledger() override { return inner_.ledger(); }

 private:
  Communicator& inner_;
};

TEST(BenchExchange, EveryKindIsVerifiedAndCounted) {
  run_ranks({1, kRanks, 1, 1}, [](Communicator& communicator) {
    const ExchangeBenchReport report = bench_exchange(communicator, quick());
    EXPECT_TRUE(report.verified) << report.fault;
    // 1000 numbers, rounded up to 334 for each rank.
    const int64_t result = kRanks * 334 * 4;
    const std::vector<std::pair<std::string, int64_t>> expected{{"all_gather", result * 2 / 3},
                                                                {"reduce_scatter", result * 2 / 3},
                                                                {"all_reduce", result * 4 / 3},
                                                                {"all_to_all", result * 2 / 3},
                                                                {"send_recv", result}};
    ASSERT_EQ(report.exchanges.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const ExchangeTimes& times = report.exchanges[i];
      EXPECT_EQ(times.kind, expected[i].first);
      EXPECT_EQ(times.result_bytes, result);
      EXPECT_EQ(times.wire_bytes, expected[i].second) << times.kind;
      EXPECT_GT(times.alone_s, 0);
      EXPECT_GT(times.compute_s, 0);
      EXPECT_GE(times.together_s, times.exposed_s);
    }
    const auto json = nlohmann::json::parse(report_json(report));
    for (const char* key : {"kind", "result_bytes", "wire_bytes", "seconds", "bytes_per_s", "compute_s",
                            "together_s", "exposed_s", "hidden_share", "progress_share"}) {
      EXPECT_TRUE(json.at("exchanges").at(0).contains(key)) << key;
    }
  });
}

TEST(BenchExchange, WhatOneRankHasWrongIsToldByAll) {
  run_ranks({1, kRanks, 1, 1}, [](Communicator& communicator) {
    Spoiled spoiled(communicator);
    const ExchangeBenchReport report = bench_exchange(spoiled, quick());
    EXPECT_FALSE(report.verified);
    // From rank 0: its element 334 + 5.
    EXPECT_EQ(report.fault, fmt::format("all_to_all: element 5 of rank 1 is -1, expected {:g}",
                                        static_cast<float>(101 + 339 * 7 % 101) / 7));
    EXPECT_TRUE(report.exchanges.empty());
    EXPECT_EQ(nlohmann::json::parse(report_json(report)).at("verified"), false);
  });
}

TEST(BenchExchange, SharesAreOfTheTransfersTime) {
  ExchangeTimes times;
  times.alone_s = 10;
  times.compute_s = 30;
  times.together_s = 34;
  times.exposed_s = 1;
  EXPECT_DOUBLE_EQ(times.hidden_share(), 0.6);
  EXPECT_DOUBLE_EQ(times.progress_share(), 0.9);
  times.together_s = 45;
  times.exposed_s = 15;
  EXPECT_DOUBLE_EQ(times.hidden_share(), 0);
  EXPECT_DOUBLE_EQ(times.progress_share(), 0);
  times.wire_bytes = 20;
  EXPECT_DOUBLE_EQ(times.bytes_per_s(), 2);
}

}  // namespace
}  // namespace lathe::test
