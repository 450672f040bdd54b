#include "lathe/loop/run_folder.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "lathe/core/error.h"

#include "support/temp_folder.h"

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

  // Lines as a run writes them, of these steps.
  static void write_steps(RunFolder& folder, const std::vector<int>& steps) {
    for (const int step : steps) folder.write_metrics(step, {{"policy/loss", step}}, {{"isa", "avx2"}});
  }
  [[nodiscard]] std::vector<int> steps_in(const std::string& file) const {
    std::vector<int> steps;
    std::ifstream in(root_ / file);
    for (std::string line; std::getline(in, line);) steps.push_back(nlohmann::json::parse(line)["step"]);
    return steps;
  }
  void save(const RunFolder& folder, const CheckpointName& name) const {
    static_cast<void>(folder.checkpoints().write(name, 0, 1, [](const std::string& /*to*/) {}));
  }

  fs::path root_;
  Log log_{false};
};

// Opening a pipe to write waits until somebody reads. The reader here is for a test that fails rather than hangs.
TEST_F(RunFolderTest, PipesUnderTheNamesOfItsFilesAreRefused) {
  fs::create_directories(root_ / "checkpoints");
  for (const char* name :
       {".lock", "config.resolved.yaml", "log.txt", "metrics.jsonl", "checkpoints/latest"}) {
    const std::string path = (root_ / name).string();
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const std::string fault = test::error_of(ErrorKind::kConfig, [&] {
      RunFolder folder(root_.string(), "auto", log_);
      folder.begin("run: {}\n");
    });
    EXPECT_NE(fault.find(path + ": is a pipe, expected a file or nothing"), std::string::npos) << fault;
    ::close(reader);
    fs::remove(path);
  }
}

TEST_F(RunFolderTest, MetricsAreOneObjectALineAndNotANumberIsNull) {
  RunFolder folder(root_.string(), "auto", log_);
  folder.begin("run: {}\n");
  folder.write_metrics(1, {{"policy/loss", 0.5}, {"policy/ratio_max", std::nan("")}},
                       {{"head.mode", "chunked"}});
  folder.write_metrics(2, {{"policy/loss", -1}}, {{"head.mode", "chunked"}});
  std::istringstream lines(read(root_ / "metrics.jsonl"));
  std::string line;
  std::getline(lines, line);
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["policy/loss"], 0.5);
  EXPECT_TRUE(first["policy/ratio_max"].is_null());
  EXPECT_EQ(first["head.mode"], "chunked");
  std::getline(lines, line);
  const auto second = nlohmann::json::parse(line);
  EXPECT_EQ(second["step"], 2);
  EXPECT_FALSE(second.contains("head.mode"));
  EXPECT_NE(read(root_ / "log.txt").find("policy/ratio_max"), std::string::npos);
  EXPECT_EQ(read(root_ / "config.resolved.yaml"), "run: {}\n");
}

TEST_F(RunFolderTest, AFolderInUseOrNotEmptyIsRefused) {
  const auto refusal = [&](const std::string& resume) {
    try {
      RunFolder folder(root_.string(), resume, log_);
      folder.begin("");
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  {
    RunFolder folder(root_.string(), "never", log_);
    folder.begin("");
    write_steps(folder, {1});
    EXPECT_NE(refusal("auto").find("in use"), std::string::npos);
  }
  EXPECT_NE(refusal("never").find("not empty"), std::string::npos);
  EXPECT_EQ(refusal("auto"), "accepted");  // an earlier run without a checkpoint: its metrics are kept
  EXPECT_EQ(steps_in("metrics.previous.jsonl"), (std::vector<int>{1}));
  std::ofstream(root_.string() + "_file") << "x";
  EXPECT_THROW(RunFolder::check_usable(root_.string() + "_file", "auto"), Error);
  fs::remove(root_.string() + "_file");
}

TEST_F(RunFolderTest, AFolderThatOnlyWasLockedIsEmpty) {
  fs::create_directories(root_);
  { const RunFolder folder(root_.string(), "never", log_); }
  EXPECT_NO_THROW(RunFolder::check_usable(root_.string(), "never"));
}

TEST_F(RunFolderTest, GoingOnDropsLinesAfterTheCheckpointAndACutOne) {
  {
    RunFolder folder(root_.string(), "auto", log_);
    folder.begin("");
    write_steps(folder, {1, 2, 3, 4});
    save(folder, {.step = 2, .micro_batches = 0});
  }
  std::ofstream(root_ / "metrics.jsonl", std::ios::app) << "{\"step\":5,\"ti";
  RunFolder folder(root_.string(), "auto", log_);
  folder.go_on_after({.step = 2, .micro_batches = 0}, "second");
  write_steps(folder, {3});
  EXPECT_EQ(steps_in("metrics.jsonl"), (std::vector<int>{1, 2, 3}));
  EXPECT_FALSE(fs::exists(root_ / "metrics.previous.jsonl"));  // the steps write them again
  EXPECT_EQ(read(root_ / "config.resolved.yaml"), "second");
  std::string text = read(root_ / "metrics.jsonl");
  EXPECT_EQ(text.find("isa"), text.rfind("isa"));  // in the first line alone
}

TEST_F(RunFolderTest, BranchingKeepsWhatItSupersedes) {
  for (int round = 1; round <= 2; ++round) {
    RunFolder folder(root_.string(), "auto", log_);
    if (round == 1) {
      folder.begin("");
      write_steps(folder, {1, 2, 3});
      save(folder, {.step = 1, .micro_batches = 0});
    } else {
      write_steps(folder, {});
    }
    if (round == 2) folder.go_on_after({.step = 1, .micro_batches = 0}, "");
    if (round == 2) write_steps(folder, {2, 3});
    save(folder, {.step = 2, .micro_batches = 1});
    save(folder, {.step = 3, .micro_batches = 0});
  }
  RunFolder folder(root_.string(), "auto", log_);
  folder.go_on_after({.step = 1, .micro_batches = 0}, "");
  EXPECT_EQ(steps_in("metrics.jsonl"), (std::vector<int>{1}));
  EXPECT_EQ(steps_in("metrics.previous.jsonl"), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(steps_in("metrics.previous-2.jsonl"), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(folder.checkpoints().complete(), (std::vector<CheckpointName>{{.step = 1, .micro_batches = 0}}));
  EXPECT_TRUE(fs::exists(root_ / "checkpoints" / "superseded_step_000003" / "COMPLETE"));
  EXPECT_TRUE(fs::exists(root_ / "checkpoints" / "superseded_step_000003.2" / "COMPLETE"));
  EXPECT_NE(read(root_ / "log.txt").find("kept as checkpoints/superseded_step_000003.2"), std::string::npos);
}

TEST_F(RunFolderTest, StrangeLinesAreNotLostSilently) {
  {
    RunFolder folder(root_.string(), "auto", log_);
    folder.begin("");
    write_steps(folder, {1});
  }
  std::ofstream(root_ / "metrics.jsonl", std::ios::app) << "a note of mine\n{\"step\":2}\n";
  RunFolder folder(root_.string(), "auto", log_);
  folder.go_on_after({.step = 2, .micro_batches = 0}, "");
  EXPECT_EQ(steps_in("metrics.jsonl"), (std::vector<int>{1}));
  EXPECT_NE(read(root_ / "metrics.previous.jsonl").find("a note of mine\n{\"step\":2}\n"), std::string::npos);
  EXPECT_NE(read(root_ / "log.txt").find("no lines of steps 2 to 2"), std::string::npos);
}

}  // namespace
}  // namespace lathe
