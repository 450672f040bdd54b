// Training on a folder that somebody fills meanwhile.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/loop/train.h"

#include "support/temp_folder.h"

namespace lathe {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::TempFolder;

constexpr double kLong = 120;

class GrowingRun : public ::testing::Test {
 protected:
  GrowingRun() {
    fs::create_directories(rollouts());
    config_.model.path = std::string(LATHE_GOLDENS) + "/llama/model";
    config_.model.compute_dtype = "f32";
    config_.data.rollouts = rollouts();
    config_.data.row_length = 256;
    config_.data.wait_s = kLong;
    config_.optimizer.learning_rate = 1e-3;
    config_.run.dir = folder_ / "run";
    config_.run.steps = 3;
    config_.run.threads = 1;
  }

  [[nodiscard]] std::string rollouts() const { return folder_ / "rollouts"; }
  // As a sampler should: under another name first.
  void sample(int64_t step) const {
    const std::string path = rollouts() + "/step_" + std::to_string(step) + ".jsonl";
    fs::copy_file(std::string(LATHE_GOLDENS) + "/llama/rollouts.jsonl", path + ".tmp");
    fs::rename(path + ".tmp", path);
  }
  [[nodiscard]] bool has_checkpoint(int64_t step) const {
    return fs::exists(folder_ / ("run/checkpoints/step_00000" + std::to_string(step) + "/COMPLETE"));
  }
  [[nodiscard]] std::string log_text() const { return test::bytes_of_file(folder_ / "run/log.txt"); }
  [[nodiscard]] std::vector<Json> metrics() const {
    std::vector<Json> out;
    std::ifstream in(folder_ / "run/metrics.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  }
  int run(const std::function<std::string()>& stop = {}) {
    TrainOptions options;
    options.stop_requested = stop;
    Log log(false);
    return train(config_, options, log, [](const std::string& /*line*/) {});
  }

  TempFolder folder_;
  RunConfig config_;
};

// The sampler makes the rollouts of a step when it has the weights of the step before.
TEST_F(GrowingRun, WeightsAreThereBeforeTheNextRolloutsAreWaitedFor) {
  config_.run.save_every = 1;
  config_.run.keep = 0;
  std::atomic<bool> ended = false;
  std::jthread sampler([&] {
    for (int64_t step = 0; step < 3 && !ended; ++step) {
      while (step > 0 && !has_checkpoint(step) && !ended)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      sample(step);
    }
  });
  EXPECT_NO_THROW(EXPECT_EQ(run(), 0));
  ended = true;
  sampler.join();
  const std::vector<Json> steps = metrics();
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_GT(steps[1]["time/wait_s"], 0.0);
  EXPECT_LT(steps[1]["time/data_s"], steps[1]["time/step_s"]);
  EXPECT_EQ(log_text().find("epoch"), std::string::npos);
}

TEST_F(GrowingRun, EndsWithACheckpointWhenNothingComesAndGoesOnWhenSomethingDoes) {
  config_.data.wait_s = 0.3;
  sample(0);
  sample(1);
  const std::string text = test::error_of(ErrorKind::kRetryable, [&] { static_cast<void>(run()); });
  EXPECT_NE(text.find("expected '" + rollouts() + "/step_2.jsonl' next"), std::string::npos) << text;
  EXPECT_TRUE(has_checkpoint(2));
  EXPECT_EQ(metrics().size(), 2U);
  EXPECT_NE(log_text().find("the next batch is not there, the steps before it are saved"), std::string::npos);
  fs::remove(rollouts() + "/step_0.jsonl");  // used
  sample(2);
  EXPECT_EQ(run(), 0);
  EXPECT_TRUE(has_checkpoint(3));
  EXPECT_EQ(metrics().size(), 3U);
  const std::string log = log_text();
  EXPECT_EQ(log.find("mean ratio"), log.rfind("mean ratio"));  // facts of the first step: once
}

TEST_F(GrowingRun, AStopIsHeardWhileWaiting) {
  sample(0);
  int asked_while_waiting = 0;
  EXPECT_EQ(run([&] { return metrics().size() == 1 && ++asked_while_waiting > 3 ? "SIGTERM" : ""; }),
            static_cast<int>(ErrorKind::kRetryable));
  EXPECT_TRUE(has_checkpoint(1));
  EXPECT_NE(log_text().find("stopped by SIGTERM after step 1"), std::string::npos) << log_text();
}

TEST_F(GrowingRun, ASaveThatFailsWhileWaitingIsNotTakenForTheWait) {
  config_.run.save_every = 1;
  sample(0);
  const std::string text = test::error_of(ErrorKind::kRetryable, [&] {
    static_cast<void>(run([&] {
      fs::remove(folder_ / "run/metrics.jsonl");  // saving flushes it
      return "";
    }));
  });
  EXPECT_NE(text.find("metrics.jsonl: cannot be flushed to disk"), std::string::npos) << text;
  EXPECT_EQ(log_text().find("the next batch"), std::string::npos) << log_text();
  EXPECT_FALSE(has_checkpoint(1));
}

TEST_F(GrowingRun, WaitsForTheFirstRollouts) {
  config_.run.steps = 1;
  const std::jthread sampler([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    sample(0);
  });
  EXPECT_EQ(run(), 0);
}

// The windows of outliers and what was said go into the checkpoint.
TEST_F(GrowingRun, StatisticsOverStepsAreInTheCheckpoint) {
  config_.run.steps = 1;
  sample(0);
  EXPECT_EQ(run(), 0);
  const Json state =
      Json::parse(test::bytes_of_file(folder_ / "run/checkpoints/step_000001/trainer/state.json"));
  EXPECT_EQ(state["rolling"]["optim/grad_norm"], Json::array({metrics()[0]["optim/grad_norm"]}));
}

TEST_F(GrowingRun, ALogLineSaysHowLongTheRunWillTake) {
  config_.data.wait_s = 0;
  config_.run.steps = 2;
  sample(0);
  EXPECT_EQ(run(), 0);
  const std::string log = log_text();
  EXPECT_NE(log.find(" GiB | eta "), std::string::npos) << log;
  EXPECT_NE(log.find("step 2/2"), std::string::npos);
  EXPECT_EQ(log.find("eta", log.find("step 2/2")), std::string::npos);
}

}  // namespace
}  // namespace lathe
