// Steps whose gradient is not finite: skipped and counted, or the end of the run with exit code 5.
#include <nlohmann/json.hpp>

#include "cli/golden_run.h"

namespace lathe {
namespace {

using nlohmann::json;

class NonFinite : public GoldenRun {
 protected:
  void SetUp() override {
    GoldenRun::SetUp();
    std::filesystem::create_directories("steps");
    std::filesystem::copy_file("rollouts.jsonl", "steps/step_1.jsonl");
    // Fits f32, but its gradient does not.
    file("steps/step_2.jsonl", R"({"prompt_ids": [1, 2], "completion_ids": [3, 4, 5], "advantage": 3e38})"
                               "\n");
    std::filesystem::copy_file("rollouts.jsonl", "steps/step_3.jsonl");
  }
  static Finished train_steps(const std::string& steps, const std::string& dir, const std::string& more) {
    return train({"--set", "data.rollouts=steps", "--set", "run.steps=" + steps, "--set", "run.dir=" + dir,
                  "--set", "optimizer.skip_nonfinite=" + more});
  }
  static std::vector<json> metrics(const std::string& dir) {
    std::vector<json> lines;
    std::ifstream text(dir + "/metrics.jsonl");
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
};

TEST_F(NonFinite, TheStepIsSkippedAndItsNormIsNull) {
  const Finished done = train_steps("3", "run", "true");
  ASSERT_EQ(done.code, 0) << done.err;
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].at("optim/skipped"), 0);
  EXPECT_EQ(lines[1].at("optim/skipped"), 1);
  EXPECT_TRUE(lines[1].at("optim/grad_norm").is_null());
  EXPECT_EQ(lines[2].at("optim/skipped"), 0);
  EXPECT_NE(done.err.find("step 2 is skipped: loss"), std::string::npos) << done.err;
}

TEST_F(NonFinite, OrTheRunEndsWithTheStepsBeforeSaved) {
  const Finished done = train_steps("3", "run", "false");
  EXPECT_EQ(done.code, 5) << done.err;
  const size_t at = done.err.find("error: step 2: loss ");
  ASSERT_NE(at, std::string::npos) << done.err;
  const std::string error = done.err.substr(at);
  EXPECT_NE(error.find("are not both finite; first tensor with such a gradient: model.embed_tokens.weight; "
                       "optimizer.skip_nonfinite is false; the weights before it are saved, and the same "
                       "command goes on after it\nhint: look at that step's "
                       "data; "),
            std::string::npos)
      << error;
  EXPECT_EQ(metrics("run").size(), 2U);
  ASSERT_EQ(train_steps("1", "straight", "true").code, 0);
  const std::string weights = bytes("straight/checkpoints/step_000001/model.safetensors");
  EXPECT_FALSE(weights.empty());
  EXPECT_TRUE(bytes("run/checkpoints/step_000002/model.safetensors") == weights);
  EXPECT_EQ(train_steps("3", "run", "false").code, 0);
  EXPECT_EQ(metrics("run").size(), 3U);
}

TEST_F(NonFinite, WeightsThatAreNotFiniteAreNeverSaved) {
  const Finished done = train({"--set", "optimizer.learning_rate=1e39", "--set",
                               "optimizer.skip_nonfinite=false", "--set", "run.steps=2"});
  EXPECT_EQ(done.code, 5) << done.err;
  EXPECT_NE(done.err.find("error: step 2: 575 scored tokens have log-probs that are not finite; "),
            std::string::npos)
      << done.err;
  EXPECT_NE(
      done.err.find("nothing is saved (step 2: the weights of model.embed_tokens.weight are not finite"),
      std::string::npos)
      << done.err;
  EXPECT_TRUE(std::filesystem::is_empty("run/checkpoints"));
}

}  // namespace
}  // namespace lathe
