// Rewards, temperature, KL: what a run does with them from the file to the weights.
#include "cli/field_run.h"

namespace lathe {
namespace {

class FieldLearning : public FieldRun {
 protected:
  static std::string weights() { return bytes("run/checkpoints/step_000001/model.safetensors"); }
};

TEST_F(FieldLearning, RewardPartsThatCancelLeaveTheWeightsAlone) {
  std::vector<Json> lines;
  for (unsigned i = 0; i < 4; ++i) {
    const double right = 0.25 * i;
    lines.push_back(line(ids(4, 1), ids(12, i), {{"reward", {{"right", right}, {"short", 1 - right}}}}));
  }
  const auto metrics = run(lines, {"optimizer.learning_rate=0.01"});
  EXPECT_EQ(metrics[0].at("group/zero_std_frac"), 1);
  EXPECT_EQ(metrics[0].at("optim/grad_norm"), 0);
  EXPECT_GT(metrics[0].at("reward_part/right").get<double>(), 0);
  EXPECT_TRUE(weights() == bytes("model/model.safetensors"));
}

TEST_F(FieldLearning, TheKlTermMovesAGroupOfEqualRewards) {
  const Ids completion = ids(12, 5);
  const Json more{{"reward", 1.0}, {"ref_logprobs", std::vector<double>(completion.size(), -2.0)}};
  const auto metrics =
      run({line(ids(4, 1), completion, more), line(ids(4, 1), completion, more)}, {"grpo.beta=0.1"});
  EXPECT_EQ(metrics[0].at("group/zero_std_frac"), 1);
  EXPECT_EQ(metrics[0].at("adv/abs_mean"), 0);
  EXPECT_GT(metrics[0].at("optim/grad_norm").get<double>(), 0);
}

// The reference is another model's opinion; with nothing else to learn, training goes there.
TEST_F(FieldLearning, TheKlTermPullsTowardsTheReference) {
  ASSERT_EQ(run_lathe({"init", "model/config.json", "--out", "other", "--seed", "5"}).code, 0);
  std::vector<Json> lines;
  for (unsigned i = 0; i < 4; ++i) lines.push_back(line(ids(4, i), ids(20, 9 + i), {{"advantage", 0.0}}));
  std::vector<Json> scored = scores(lines, {}, "other");
  for (size_t i = 0; i < lines.size(); ++i) lines[i]["ref_logprobs"] = scored[i].at("logprobs");
  const auto metrics = run(lines, {"grpo.beta=0.1", "run.steps=20", "optimizer.learning_rate=0.0003"});
  ASSERT_EQ(metrics.size(), 20U);
  for (size_t i = 1; i < metrics.size(); ++i) {
    EXPECT_LT(metrics[i].at("policy/ref_kl").get<double>(), metrics[i - 1].at("policy/ref_kl").get<double>())
        << i;
  }
}

TEST_F(FieldLearning, LogProbsAreTakenAtTheLinesTemperature) {
  std::vector<Json> lines;
  for (unsigned i = 0; i < 4; ++i) {
    lines.push_back(line(ids(4, i), ids(20, 9 + i), {{"advantage", 1.0}, {"temperature", 0.6}}));
  }
  const std::vector<Json> scored = scores(lines);
  for (size_t i = 0; i < lines.size(); ++i) {
    lines[i]["old_logprobs"] = lines[i]["rollout_logprobs"] = scored[i].at("logprobs");
  }
  const auto right = run(lines);
  EXPECT_NEAR(right[0].at("policy/ratio_mean").get<double>(), 1, 1e-5);
  EXPECT_NEAR(right[0].at("mismatch/abs_mean").get<double>(), 0, 1e-5);
  for (Json& json : lines) json.erase("temperature");
  EXPECT_GT(run(lines)[0].at("mismatch/abs_mean").get<double>(), 0.1);
}

TEST_F(FieldLearning, TheFirstStepOnPolicyHasRatioOneAndAGradient) {
  std::vector<Json> lines;
  for (unsigned i = 0; i < 4; ++i)
    lines.push_back(line(ids(4, 1), ids(10 + 5 * static_cast<int>(i), i), {{"reward", i % 2}}));
  const Json metrics = run(lines)[0];
  EXPECT_EQ(metrics.at("policy/ratio_max"), 1);
  EXPECT_EQ(metrics.at("policy/clip_frac"), 0);
  EXPECT_NEAR(metrics.at("policy/loss").get<double>(), 0, 1e-6);
  EXPECT_GT(metrics.at("optim/grad_norm").get<double>(), 1e-3);
}

TEST_F(FieldLearning, ScoredRolloutsTrainTheSameStep) {
  std::vector<Json> lines;
  for (unsigned i = 0; i < 4; ++i) lines.push_back(line(ids(4, 1), ids(20, i), {{"reward", i}}));
  run(lines);
  const std::string expected = weights();
  run(scores(lines));
  EXPECT_TRUE(weights() == expected);
}

TEST_F(FieldLearning, InterleavedGroupsTrainTheSameStepAsSortedOnes) {
  std::vector<Json> sorted;
  const std::vector<Json> names{9007199254740992, 9007199254740993, "9007199254740993", "g"};
  for (unsigned i = 0; i < 8; ++i) {
    sorted.push_back(line(ids(4, i / 2), ids(16, i), {{"reward", i % 3}, {"group_id", names[i / 2]}}));
  }
  const double expected = run(sorted)[0].at("adv/abs_mean").get<double>();
  EXPECT_EQ(run(sorted)[0].at("group/count"), 4);
  std::vector<Json> interleaved;
  for (const unsigned i : {0U, 2U, 4U, 6U, 1U, 3U, 5U, 7U}) interleaved.push_back(sorted[i]);
  const Json metrics = run(interleaved)[0];
  EXPECT_EQ(metrics.at("group/count"), 4);
  EXPECT_NEAR(metrics.at("adv/abs_mean").get<double>(), expected, 1e-12);
}

}  // namespace
}  // namespace lathe
