// The step loop on a tiny model: several steps per batch, the starting weights as reference, and what a bad file leaves.
#include "lathe/loop/train.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/model/parameters.h"

namespace lathe {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;

class TrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / ("lathe_train_" + std::string(info->name()));
    fs::remove_all(root_);
    fs::create_directories(root_);
    config_.model.path = std::string(LATHE_GOLDENS) + "/llama/model";
    config_.model.compute_dtype = "f32";
    config_.data.rollouts = std::string(LATHE_GOLDENS) + "/llama/rollouts.jsonl";
    config_.data.row_length = 256;
    config_.optimizer.learning_rate = 1e-3;
    config_.run.dir = (root_ / "run").string();
    config_.run.steps = 2;
    config_.run.threads = 1;
  }
  void TearDown() override { fs::remove_all(root_); }

  // The lines of metrics.jsonl.
  std::vector<Json> run() {
    EXPECT_EQ(train(config_, {}, log_, [](const std::string& /*line*/) {}), 0);
    return metrics();
  }
  [[nodiscard]] std::vector<Json> metrics() const {
    std::vector<Json> out;
    std::ifstream in(root_ / "run" / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  }

  fs::path root_;
  RunConfig config_;
  Log log_{false};
};

TEST_F(TrainTest, SeveralStepsOnABatchCompareWithThePolicyAtItsStart) {
  config_.grpo.num_iterations = 2;
  const std::vector<Json> steps = run();
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0]["policy/ratio_max"], 1.0);
  EXPECT_EQ(steps[0]["policy/approx_kl"], 0.0);
  EXPECT_GT(steps[1]["policy/ratio_max"], 1.0);
  EXPECT_NE(steps[1]["policy/approx_kl"], 0.0);
}

TEST_F(TrainTest, OneStepPerBatchKeepsTheRatioAtOne) {
  const std::vector<Json> steps = run();
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[1]["policy/ratio_max"], 1.0);
  EXPECT_EQ(steps[1]["data/epoch"], 1.0);
}

TEST_F(TrainTest, TheStartingWeightsAreTheReference) {
  config_.grpo.beta = 0.1;
  config_.grpo.reference_initial = true;
  const std::vector<Json> steps = run();
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0]["policy/ref_kl"], 0.0);
  EXPECT_GT(steps[1]["policy/ref_kl"], 0.0);
}

TEST_F(TrainTest, ABadFileInTheMiddleCostsNoFinishedStep) {
  const fs::path rollouts = root_ / "rollouts";
  fs::create_directories(rollouts);
  fs::copy(config_.data.rollouts, rollouts / "step_000000.jsonl");
  std::ofstream(rollouts / "step_000001.jsonl") << "not JSON\n";
  config_.data.rollouts = rollouts.string();
  try {
    static_cast<void>(train(config_, {}, log_, [](const std::string& /*line*/) {}));
    FAIL() << "a file that is not JSON was trained on";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 3);
  }
  EXPECT_EQ(metrics().size(), 1U);
  EXPECT_TRUE(fs::exists(root_ / "run" / "checkpoints" / "step_000001" / "COMPLETE"));
  config_.run.dir = (root_ / "other").string();
  TrainOptions options;
  options.dry_run = true;
  EXPECT_THROW(static_cast<void>(train(config_, options, log_, [](const std::string& /*line*/) {})), Error);
  EXPECT_FALSE(fs::exists(root_ / "other"));
}

// The least budget with which every layer keeps its activations, found by asking; with a reference it is larger by what
// the reference's weights take.
TEST_F(TrainTest, TheReferenceIsPartOfTheMemoryBudget) {
  TrainOptions options;
  options.dry_run = true;
  const auto keeps_all = [&](int64_t budget) {
    config_.run.memory_budget = budget;
    bool all = false;
    const auto print = [&all](const std::string& line) { all = all || line == "remat.policy: none"; };
    EXPECT_EQ(train(config_, options, log_, print), 0);
    return all;
  };
  const auto least = [&] {
    int64_t low = 0;
    int64_t high = int64_t{1} << 30;
    while (high - low > 1024) {
      const int64_t middle = (low + high) / 2;
      (keeps_all(middle) ? high : low) = middle;
    }
    return high;
  };
  const int64_t alone = least();
  config_.grpo.beta = 0.1;
  config_.grpo.reference_initial = true;
  std::vector<std::string> warnings;
  const int64_t weights = 4 * parameter_count(read_model_config(config_.model.path, &warnings));
  EXPECT_NEAR(static_cast<double>(least() - alone), static_cast<double>(weights), 4096.0);
}

TEST_F(TrainTest, WeightsThatAreNotFiniteAreNotSaved) {
  config_.optimizer.learning_rate = 1e39;
  config_.run.steps = 1;
  EXPECT_THROW(static_cast<void>(train(config_, {}, log_, [](const std::string& /*line*/) {})), Error);
  EXPECT_TRUE(fs::is_empty(root_ / "run" / "checkpoints"));
}

}  // namespace
}  // namespace lathe
