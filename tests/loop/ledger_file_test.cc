#include "lathe/loop/ledger_file.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/run_ranks.h"

namespace lathe {
namespace {

nlohmann::json read(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST(LedgerFileTest, HoldsWhatOneRankExchanged) {
  const std::string path = (std::filesystem::temp_directory_path() / "lathe_ledger_file_test.json").string();
  test::run_ranks({1, 2, 2, 1}, [&](Communicator& communicator) {
    const Exchange exchange{.axes = kAxesDense, .phase = Phase::kUpdate, .tensor = "loss"};
    std::vector<double> values{1, 2, 3};
    communicator.all_reduce_sum(exchange, values);
    if (communicator.rank() == 0) write_ledger(path, communicator);
  });
  const nlohmann::json json = read(path);
  std::filesystem::remove(path);
  EXPECT_EQ(json.at("ranks"), 4);
  EXPECT_EQ(json.at("mesh"), nlohmann::json({{"data", 1}, {"fsdp", 2}, {"context", 2}, {"expert", 1}}));
  ASSERT_EQ(json.at("collectives").size(), 1U);
  const nlohmann::json& entry = json.at("collectives").at(0);
  EXPECT_EQ(entry.at("phase"), "update");
  EXPECT_EQ(entry.at("tensor"), "loss");
  EXPECT_EQ(entry.at("kind"), "all_reduce");
  EXPECT_EQ(entry.at("axes"), "fsdp,context,expert");
  EXPECT_EQ(entry.at("count"), 1);
  EXPECT_EQ(entry.at("result_bytes"), 24);
  EXPECT_EQ(entry.at("wire_bytes"), 36);
  EXPECT_GT(entry.at("wait_s").get<double>(), 0);
  EXPECT_GE(entry.at("exposed_s").get<double>(), 0);
}

TEST(LedgerFileTest, OneRankExchangesNothing) {
  const std::string path = (std::filesystem::temp_directory_path() / "lathe_ledger_file_solo.json").string();
  const auto solo = make_solo_communicator();
  write_ledger(path, *solo);
  EXPECT_TRUE(read(path).at("collectives").empty());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lathe
