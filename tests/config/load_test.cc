#include "lathe/config/load.h"

#include "lathe/config/option_table.h"

#include "config/config_files.h"

namespace lathe {
namespace {

using Load = ConfigFiles;

TEST_F(Load, GivesDefaultsAndTakesValues) {
  const RunConfig c = load(
                          "  rows_per_micro_batch: 4\n"
                          "grpo:\n"
                          "  loss_agg_mode: token-mean\n"
                          "  epsilon_high: 0.28\n"
                          "  reward_weights: {format: 0.5, right: 1}\n"
                          "optimizer:\n"
                          "  learning_rate: 1e-4\n"
                          "  weight_decay: 0.1\n"
                          "  weight_decay_exclude: ['norm', \"\\\\.bias$\"]\n"
                          "  schedule: cosine\n")
                          .config;
  EXPECT_EQ(c.data.row_length, 256);
  EXPECT_EQ(c.data.rows_per_micro_batch, 4);
  EXPECT_EQ(c.data.segment_alignment, 64);
  EXPECT_EQ(c.grpo.loss_agg_mode, LossAggregation::kTokenMean);
  EXPECT_EQ(c.grpo.epsilon_high, 0.28);
  EXPECT_EQ(c.grpo.epsilon, 0.2);
  EXPECT_EQ(c.grpo.sampler_is_threshold, 2.0);
  EXPECT_EQ(c.grpo.reward_weights, (std::map<std::string, double>{{"format", 0.5}, {"right", 1}}));
  EXPECT_EQ(c.optimizer.learning_rate, 1e-4);
  EXPECT_EQ(c.optimizer.weight_decay_exclude, (std::vector<std::string>{"norm", "\\.bias$"}));
  EXPECT_EQ(c.optimizer.schedule, LrSchedule::kCosine);
  EXPECT_EQ(c.run.steps, 3);
  EXPECT_EQ(c.remat.policy, "auto");
}

TEST_F(Load, SetGoesOnTopAndTheLastWins) {
  const LoadedConfig loaded =
      load("  max_segments: 8\n",
           {"data.max_segments=16", "run.steps=5", "run.steps=7", "grpo.reward_weights={a: 2}",
            "model.trainable=['q_proj', k_proj]", "run.memory_budget=6GiB"});
  EXPECT_EQ(loaded.config.data.max_segments, 16);
  EXPECT_EQ(loaded.config.run.steps, 7);
  EXPECT_EQ(loaded.config.grpo.reward_weights.at("a"), 2);
  EXPECT_EQ(loaded.config.model.trainable, (std::vector<std::string>{"q_proj", "k_proj"}));
  EXPECT_EQ(loaded.config.run.memory_budget, int64_t{6} << 30);
  EXPECT_EQ(loaded.origins.at("run.steps"), "--set");
}

TEST_F(Load, NullUnsetsOptionalKeys) {
  const RunConfig c =
      load(
          "grpo:\n  loss_agg_norm: null\n  epsilon_c: ~\n  kl_clamp_value:\n  sampler_is: token\n"
          "  sampler_is_threshold: null\n")
          .config;
  EXPECT_FALSE(c.grpo.loss_agg_norm.has_value());
  EXPECT_FALSE(c.grpo.epsilon_c.has_value());
  EXPECT_TRUE(c.grpo.sampler_is_token);
  EXPECT_FALSE(c.grpo.sampler_is_threshold.has_value());
}

TEST_F(Load, EmptySectionsAreFine) {
  EXPECT_EQ(problems_of("grpo:\noptimizer: {}\n"), "no problem");
}

TEST_F(Load, CompletesPathsFromTheirOwnFolder) {
  const RunConfig c = load("", {"run.dir=elsewhere/run"}).config;
  EXPECT_EQ(c.model.path, (folder_ / "model").string());
  EXPECT_EQ(c.data.rollouts, (folder_ / "rollouts.jsonl").string());
  EXPECT_EQ(c.run.dir, (std::filesystem::current_path() / "elsewhere/run").string());
  EXPECT_EQ(c.run.resume, "auto");
  const RunConfig absolute = load("", {"model.path=/models/tiny", "data.rollouts=*.jsonl"}).config;
  EXPECT_EQ(absolute.model.path, "/models/tiny");
  EXPECT_EQ(absolute.data.rollouts, (std::filesystem::current_path() / "*.jsonl").string());
}

TEST_F(Load, ScoreTakesOnlyWhatItReads) {
  const LoadedConfig loaded = load_score_config({"data.row_length=512", "run.threads=2", "head.chunk=7"});
  EXPECT_EQ(loaded.config.data.row_length, 512);
  EXPECT_EQ(loaded.config.run.threads, 2);
  EXPECT_EQ(loaded.config.head.chunk, 7);
  EXPECT_EQ(load_score_config({}).config.data.row_length, 0);
  for (const char* set :
       {"grpo.beta=1", "model.path=x", "data.rollouts=x", "run.steps=3", "model.trainable=[a]"}) {
    EXPECT_THROW(static_cast<void>(load_score_config({set})), ConfigProblems) << set;
  }
}

TEST_F(Load, ResolvedTextSaysEveryKeyAndItsOrigin) {
  const LoadedConfig loaded = load("grpo:\n  beta: 0.05\n", {"run.steps=4"});
  const std::string text = short_paths(resolved_config_text(loaded));
  EXPECT_NE(text.find("\n  beta: 0.05  # run.yaml:7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  steps: 4  # --set\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  epsilon: 0.2  # default\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  mode: auto  # default; here: fused\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  path: \"model\"  # run.yaml:1\n"), std::string::npos) << text;
  for (const Option& option : option_table()) {
    EXPECT_NE(text.find("\n  " + option.name + ": "), std::string::npos) << option.key();
  }
}

TEST_F(Load, ResolvedTextGivesTheSameRunFromAnyFolder) {
  const LoadedConfig first = load(
      "  pad_position: start\n  pad_alignment: 64\n"
      "grpo:\n  reward_weights: {\"a \\\"b\\\": c\": 0.1}\n  sampler_is: token\n  beta: 1e-3\n  "
      "kl_loss_mode: mse_kl\n"
      "optimizer:\n  weight_decay: 0.3\n  weight_decay_exclude: ['\\.bias$', \"tab\\there\"]\n  "
      "learning_rate: 3.3e-7\n",
      {"run.seed=18446744073709551615", "run.memory_budget=1.5KiB", "data.rollouts=a: #b/step_*.jsonl"});
  const std::string text = resolved_config_text(first);
  std::filesystem::create_directories(folder_ / "other");
  const LoadedConfig second = load_train_config(file(text, "other/config.resolved.yaml"), {});
  for (const Option& option : option_table()) {
    EXPECT_EQ(option.text(first.config), option.text(second.config)) << option.key();
  }
  EXPECT_EQ(second.config.run.seed, 18446744073709551615U);
  EXPECT_EQ(second.config.optimizer.weight_decay_exclude[1], "tab\there");
  EXPECT_EQ(second.config.grpo.reward_weights.at("a \"b\": c"), 0.1);
}

TEST(OptionTable, KeysAreUniqueAndDefaultsAreAccepted) {
  std::map<std::string, int> seen;
  for (const Option& option : option_table()) {
    EXPECT_EQ(++seen[option.key()], 1) << option.key();
    EXPECT_FALSE(option.help.empty()) << option.key();
    for (const Requirement& need : option.needs) EXPECT_NE(find_option(need.key), nullptr) << need.key;
    if (option.required) continue;
    RunConfig config;
    EXPECT_TRUE(option.set(parse_yaml(default_text(option), "default"), config)) << option.key();
    EXPECT_EQ(option.text(config), option.text(RunConfig{})) << option.key();
  }
}

}  // namespace
}  // namespace lathe
