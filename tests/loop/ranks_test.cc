// What ranks read and agree on: runs on threads, of which each is a rank.
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <unistd.h>

#include "lathe/core/error.h"
#include "lathe/loop/agreement.h"
#include "lathe/loop/train.h"

#include "support/hooked_communicator.h"
#include "support/run_ranks.h"
#include "support/temp_folder.h"

namespace lathe {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::TempFolder;

constexpr int kRanks = 2;

class RankedRun : public ::testing::Test {
 protected:
  RankedRun() {
    std::ifstream in(std::string(LATHE_GOLDENS) + "/llama/rollouts.jsonl");
    for (std::string line; std::getline(in, line);) lines_.push_back(line + "\n");
    config_.model.path = std::string(LATHE_GOLDENS) + "/llama/model";
    config_.model.compute_dtype = "f32";
    config_.data.row_length = 256;
    config_.optimizer.learning_rate = 1e-3;
    config_.run.dir = folder_ / "run";
    config_.run.steps = 2;
    config_.run.threads = 1;
    config_.mesh.data = kRanks;
  }

  [[nodiscard]] std::string forward() const {
    std::string text;
    for (const std::string& line : lines_) text += line;
    return text;
  }
  [[nodiscard]] std::string backward() const {
    std::string text;
    for (const std::string& line : lines_) text.insert(0, line);
    return text;
  }
  // As a sampler should: under another name first.
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    folder_.write(name + ".tmp", text);
    fs::rename(folder_ / (name + ".tmp"), folder_ / name);
  }

  // The exit code of rank 0. The first error is thrown.
  int run() {
    int code = -1;
    test::run_ranks_of({.data = kRanks}, [&](ThreadWorld& world, int rank) {
      if (views_) {
        // From here on this thread has a working directory of its own.
        ASSERT_EQ(::unshare(CLONE_FS), 0);
        fs::current_path(folder_ / ("rank" + std::to_string(rank)));
      }
      TrainOptions options;
      options.stop_after = stop_after_;
      options.settings = settings_.at(static_cast<size_t>(rank));
      options.communicator = [&](DeviceMemory& memory) {
        auto communicator = world.communicator(rank, memory);
        if (rank != 1 || !after_) return communicator;
        return test::hook_reductions(std::move(communicator), after_);
      };
      Log log(false);
      const int ended = train(config_, options, log, [](const std::string& /*line*/) {});
      if (rank == 0) code = ended;
    });
    return code;
  }

  [[nodiscard]] std::vector<Json> metrics() const {
    std::vector<Json> out;
    std::ifstream in(folder_ / "run/metrics.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  }
  [[nodiscard]] bool has_checkpoint(const std::string& name) const {
    return fs::exists(folder_ / ("run/checkpoints/" + name + "/COMPLETE"));
  }
  [[nodiscard]] std::vector<std::string> used_files(const std::string& checkpoint) const {
    const Json state =
        Json::parse(test::bytes_of_file(folder_ / ("run/checkpoints/" + checkpoint + "/trainer/state.json")));
    std::vector<std::string> names;
    for (const Json& file : state["data"]["files"])
      names.push_back(fs::path(file.get<std::string>()).filename().string());
    return names;
  }
  [[nodiscard]] std::string log_text() const { return test::bytes_of_file(folder_ / "run/log.txt"); }

  TempFolder folder_;
  RunConfig config_;
  std::vector<std::string> lines_;
  bool views_ = false;  // every rank sees files of its own under relative paths
  std::string stop_after_;
  std::array<std::vector<Setting>, kRanks> settings_;  // by rank
  test::AfterReduction after_;                         // on rank 1
};

// Rank 0 has taken a file when one before it appears; rank 1 comes later.
TEST_F(RankedRun, AFileThatAppearsBetweenTwoRanksLooksIsOfNeither) {
  config_.data.rollouts = folder_ / "batches";
  config_.data.wait_s = 30;
  put("batches/step_1.jsonl", forward());
  bool waits = false;
  bool late = false;
  after_ = [&](const Exchange& exchange, test::Reduction kind, std::span<const double> result) {
    if (std::string(exchange.tensor) != "run" || kind != test::Reduction::kMax || result.size() != 3) return;
    constexpr double kThere = 0;
    constexpr double kWaits = 3;
    if (result[0] == kWaits && !std::exchange(waits, true)) put("batches/step_3.jsonl", forward());
    if (!waits || result[0] != kThere || std::exchange(late, true)) return;
    put("batches/step_2.jsonl", backward());
    std::this_thread::sleep_for(std::chrono::milliseconds(600));  // it is complete
  };
  EXPECT_EQ(run(), 0);
  EXPECT_TRUE(waits && late);
  EXPECT_EQ(used_files("step_000002"), (std::vector<std::string>{"step_1.jsonl", "step_3.jsonl"}));
}

// It is appended to between the looks of two ranks.
TEST_F(RankedRun, WhatIsAppendedAfterAFileWasChosenIsNotRead) {
  views_ = true;
  config_.data.rollouts = "r.jsonl";
  put("rank0/r.jsonl", forward());
  put("rank1/r.jsonl", forward() + lines_[0] + lines_[1] + "{\"cut");
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(metrics()[1]["data/trajectories"], static_cast<double>(lines_.size()));
}

TEST_F(RankedRun, OtherContentsOnAnotherRankAreRefusedOnAll) {
  views_ = true;
  config_.data.rollouts = "r.jsonl";
  put("rank0/r.jsonl", forward());
  put("rank1/r.jsonl", backward());
  const std::string text = test::error_of(ErrorKind::kData, [&] { static_cast<void>(run()); });
  EXPECT_EQ(text.find("r.jsonl: rank 1 reads other contents there than rank 0"), 0U) << text;
  EXPECT_NE(text.find("put the rollouts on a file system that all ranks share"), std::string::npos) << text;
}

TEST_F(RankedRun, OtherContentsInTheMiddleCostNoFinishedStep) {
  views_ = true;
  config_.data.rollouts = "batches/*.jsonl";
  for (const char* rank : {"rank0", "rank1"}) put(std::string(rank) + "/batches/a.jsonl", forward());
  put("rank0/batches/b.jsonl", forward());
  put("rank1/batches/b.jsonl", backward());
  const std::string text = test::error_of(ErrorKind::kData, [&] { static_cast<void>(run()); });
  EXPECT_EQ(text.find("batches/b.jsonl: rank 1 reads other contents"), 0U) << text;
  EXPECT_TRUE(has_checkpoint("step_000001"));
  EXPECT_EQ(metrics().size(), 1U);
}

TEST_F(RankedRun, AFileThatOneRankDoesNotSeeOrNotWholeIsItsError) {
  views_ = true;
  config_.data.rollouts = "batches/*.jsonl";
  for (const char* rank : {"rank0", "rank1"}) put(std::string(rank) + "/batches/a.jsonl", forward());
  put("rank0/batches/b.jsonl", forward());
  std::string text = test::error_of(ErrorKind::kData, [&] { static_cast<void>(run()); });
  EXPECT_EQ(text.find("rank 1: batches/b.jsonl: cannot be opened"), 0U) << text;
  EXPECT_TRUE(has_checkpoint("step_000001"));
  EXPECT_NE(log_text().find("saved: rank 1: batches/b.jsonl: cannot be opened"), std::string::npos)
      << log_text();
  put("rank1/batches/b.jsonl", lines_[0]);
  text = test::error_of(ErrorKind::kData, [&] { static_cast<void>(run()); });
  EXPECT_EQ(text.find(fmt::format("rank 1: batches/b.jsonl: ends after {} bytes, expected {}",
                                  lines_[0].size(), forward().size())),
            0U)
      << text;
  put("rank1/batches/b.jsonl", forward());
  EXPECT_EQ(run(), 0);
}

TEST_F(RankedRun, BadLinesAreLeftOutOnAllRanksAndToldOnce) {
  config_.data.rollouts = folder_ / "a*.jsonl";
  config_.data.on_bad_line = "skip";
  put("a1.jsonl", forward());
  put("a2.jsonl", lines_[0] + "{\"bad\n" + forward().substr(lines_[0].size()));
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(metrics()[1]["data/bad_lines"], 1.0);
  const std::string log = log_text();
  const size_t told = log.find("a2.jsonl:2: ");
  ASSERT_NE(told, std::string::npos) << log;
  EXPECT_EQ(told, log.rfind("a2.jsonl:2: "));
  put("a2.jsonl", forward());
  config_.run.dir = folder_ / "run2";
  EXPECT_EQ(run(), 0);
  EXPECT_TRUE(test::bytes_of_file(folder_ / "run/checkpoints/step_000002/model.safetensors") ==
              test::bytes_of_file(folder_ / "run2/checkpoints/step_000002/model.safetensors"));
}

// The rest of a step is of the file that it began with, though one before it is there by now.
TEST_F(RankedRun, AStepGoesOnWithItsFile) {
  config_.data.rollouts = folder_ / "batches";
  config_.data.wait_s = 5;
  config_.run.steps = 1;
  put("batches/step_3.jsonl", forward());
  stop_after_ = "0:1";
  EXPECT_EQ(run(), static_cast<int>(ErrorKind::kRetryable));
  ASSERT_TRUE(has_checkpoint("step_000000-mb0001"));
  put("batches/step_2.jsonl", lines_[0]);
  stop_after_ = "";
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(used_files("step_000001"), std::vector<std::string>{"step_3.jsonl"});
}

// A rank that is late still finds every folder under its name.
TEST_F(RankedRun, CheckpointsAreRenamedWhenAllRanksHaveRead) {
  config_.data.rollouts = folder_ / "r.jsonl";
  config_.run.save_every = 1;
  config_.run.keep = 0;
  put("r.jsonl", forward());
  EXPECT_EQ(run(), 0);
  config_.run.resume = folder_ / "run/checkpoints/step_000001";
  int reductions = 0;
  after_ = [&](const Exchange& exchange, test::Reduction, std::span<const double>) {
    if (std::string(exchange.tensor) != "run" || exchange.channel != Channel::kHost) return;
    if (++reductions > 12) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(has_checkpoint("step_000002")) << "after reduction " << reductions;
  };
  EXPECT_EQ(run(), 0);
}

TEST_F(RankedRun, OtherSettingsOrAnotherModelOnAnotherRankAreRefused) {
  config_.data.rollouts = folder_ / "r.jsonl";
  put("r.jsonl", forward());
  settings_[0] = {{"grpo.beta", "0", "0"}, {"run.threads", "1", "0"}};
  settings_[1] = {{"grpo.beta", "0", "0"}, {"run.threads", "2", "0"}};
  EXPECT_EQ(run(), 0);
  settings_[1][0].value = "0.1";
  config_.run.dir = folder_ / "other";
  std::string text = test::error_of(ErrorKind::kConfig, [&] { static_cast<void>(run()); });
  EXPECT_EQ(text.find("run file: rank 1 has other settings than rank 0"), 0U) << text;
  settings_ = {};
  views_ = true;
  for (const char* rank : {"rank0", "rank1"}) {
    fs::create_directories(folder_ / rank);
    folder_.copy_of(config_.model.path, std::string(rank) + "/model");
  }
  std::ofstream(folder_ / "rank1/model/config.json", std::ios::app) << "\n";
  config_.model.path = "model";
  text = test::error_of(ErrorKind::kModel, [&] { static_cast<void>(run()); });
  EXPECT_EQ(text.find("model: rank 1 finds another model there than rank 0"), 0U) << text;
}

TEST(Agreement, TheLeadersTextsArriveAsTheyAre) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  const std::vector<std::string> texts{"", "a:b", bytes, std::string(5, '\0')};
  test::run_ranks({.fsdp = 3}, [&](Communicator& communicator) {
    const bool leads = communicator.rank() == 0;
    EXPECT_EQ(leaders_texts(communicator, leads ? texts : std::vector<std::string>{"no"}), texts);
    EXPECT_TRUE(leaders_texts(communicator, {}).empty());
  });
}

TEST(Agreement, ADigestKeepsOrderValuesAndBorders) {
  const auto of = [](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    Digest digest;
    digest.add_all(std::span(a));
    digest.add_all(std::span(b));
    EXPECT_LT(digest.value(), 4503599627370496.0);
    return digest.value();
  };
  EXPECT_EQ(of({1, 2}, {3}), of({1, 2}, {3}));
  EXPECT_NE(of({1, 2}, {3}), of({2, 1}, {3}));
  EXPECT_NE(of({1, 2}, {3}), of({1}, {2, 3}));
  EXPECT_NE(of({1, 2}, {3}), of({1, 2}, {4}));
}

TEST(Agreement, TheLeastInstructionSetIsForAll) {
  const std::vector<RankIsa> mixed{{Isa::kAvx512Bf16, false}, {Isa::kAvx2, false}, {Isa::kAmx, false}};
  EXPECT_EQ(common_isa(mixed), Isa::kAvx2);
  const std::vector<RankIsa> lowered{{Isa::kAmx, false}, {Isa::kAvx512, true}};
  EXPECT_EQ(common_isa(lowered), Isa::kAvx512);
  const std::vector<RankIsa> wanted{{Isa::kAvx2, false}, {Isa::kAvx512, true}};
  EXPECT_EQ(
      test::error_of(ErrorKind::kConfig, [&] { static_cast<void>(common_isa(wanted)); }),
      "LATHE_ISA: rank 1 is to use avx512, and rank 0 uses avx2; all ranks use the same | set LATHE_ISA to "
      "avx2 on all ranks, or on none");
}

}  // namespace
}  // namespace lathe
