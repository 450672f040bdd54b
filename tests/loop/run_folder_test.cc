#include "lathe/loop/run_folder.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/core/error.h"

namespace lathe {
namespace {
namespace fs = std::filesystem;

class RunFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / ("lathe_run_folder_" + std::string(info->name()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  static std::string read(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  fs::path root_;
  Log log_{false};
};

TEST_F(RunFolderTest, MetricsAreOneObjectALineAndNotANumberIsNull) {
  RunFolder folder(root_.string(), "auto", "run: {}\n", log_);
  folder.write_metrics(1, {{"policy/loss", 0.5}, {"policy/ratio_max", std::nan("")}},
                       {{"head.mode", "chunked"}});
  folder.write_metrics(2, {{"policy/loss", -1}}, {});
  std::istringstream lines(read(root_ / "metrics.jsonl"));
  std::string line;
  std::getline(lines, line);
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["policy/loss"], 0.5);
  EXPECT_TRUE(first["policy/ratio_max"].is_null());
  EXPECT_EQ(first["head.mode"], "chunked");
  std::getline(lines, line);
  EXPECT_EQ(nlohmann::json::parse(line)["step"], 2);
  EXPECT_NE(read(root_ / "log.txt").find("policy/ratio_max"), std::string::npos);
  EXPECT_EQ(read(root_ / "config.resolved.yaml"), "run: {}\n");
}

TEST_F(RunFolderTest, CheckpointsAreCompleteOrNotThere) {
  RunFolder folder(root_.string(), "auto", "", log_);
  const auto write_model = [](const std::string& to) { std::ofstream(fs::path(to) / "config.json") << "{}"; };
  EXPECT_THROW(folder.save_checkpoint(1, 2,
                                      [](const std::string& to) {
                                        std::ofstream(fs::path(to) / "config.json") << "{}";
                                        throw std::runtime_error("disk full");
                                      }),
               std::runtime_error);
  EXPECT_TRUE(fs::is_empty(root_ / "checkpoints"));
  for (const int step : {1, 2, 3}) {
    const std::string path = folder.save_checkpoint(step, 2, write_model);
    EXPECT_TRUE(fs::exists(fs::path(path) / "COMPLETE"));
  }
  EXPECT_FALSE(fs::exists(root_ / "checkpoints" / "step_000001"));
  EXPECT_TRUE(fs::exists(root_ / "checkpoints" / "step_000002" / "config.json"));
  EXPECT_EQ(read(root_ / "checkpoints" / "latest"), "step_000003\n");
}

TEST_F(RunFolderTest, AFolderWithCheckpointsIsRefused) {
  {
    RunFolder folder(root_.string(), "auto", "", log_);
    static_cast<void>(folder.save_checkpoint(1, 0, [](const std::string& /*to*/) {}));
  }
  try {
    const RunFolder again(root_.string(), "auto", "", log_);
    FAIL() << "a used folder was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_NE(std::string(e.what()).find(root_.string()), std::string::npos);
    EXPECT_NE(e.hint().find("run.dir"), std::string::npos);
  }
}

TEST_F(RunFolderTest, AFolderInUseOrNotEmptyIsRefused) {
  const auto refusal = [&](const std::string& resume) {
    try {
      const RunFolder folder(root_.string(), resume, "", log_);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  {
    RunFolder folder(root_.string(), "never", "", log_);
    folder.write_metrics(1, {{"policy/loss", 1}}, {});
    EXPECT_NE(refusal("auto").find("in use"), std::string::npos);
  }
  EXPECT_NE(refusal("never").find("not empty"), std::string::npos);
  EXPECT_EQ(refusal("auto"), "accepted");  // an earlier run without a checkpoint: its metrics are kept
  EXPECT_NE(read(root_ / "metrics.previous.jsonl").find("policy/loss"), std::string::npos);
  std::ofstream(root_.string() + "_file") << "x";
  EXPECT_THROW(RunFolder::check_usable(root_.string() + "_file", "auto"), Error);
  fs::remove(root_.string() + "_file");
}

}  // namespace
}  // namespace lathe
