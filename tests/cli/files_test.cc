// Commands that make and read files: init, inspect, and what train and score say about a model and rollouts.
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "cli/run_lathe.h"

namespace lathe {
namespace {

using nlohmann::json;

class Files : public CommandTest {
 protected:
  static std::string golden(const std::string& name) { return std::string(LATHE_GOLDENS) + "/" + name; }
  static json inspect(const std::string& path, int code = 0) {
    const Finished done = run_lathe({"inspect", path, "--json"});
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_EQ(done.err.empty(), code == 0) << done.err;
    return json::parse(done.out);
  }
  static std::string bytes(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
};

TEST_F(Files, InitMakesAModelThatInspectUnderstands) {
  const std::string config = golden("qwen3_5_moe/model/config.json");
  for (const char* out : {"a", "b"}) {
    const Finished done = run_lathe({"init", config, "--out", out, "--seed", "7"});
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(done.out, std::string("written: ") + out + "\n");
  }
  EXPECT_EQ(run_lathe({"init", config, "--out", "c", "--seed", "8", "--dtype", "bf16"}).code, 0);
  EXPECT_TRUE(bytes("a/model.safetensors") == bytes("b/model.safetensors"));
  const json a = inspect("a");
  EXPECT_EQ(a.at("family"), "qwen3_5_moe");
  EXPECT_GT(a.at("parameters").get<int64_t>(), a.at("active_parameters").get<int64_t>());
  EXPECT_EQ(a.at("missing"), json::array());
  EXPECT_EQ(a.at("problems"), json::array());
  EXPECT_EQ(a.at("tensors").at(0).at("dtype"), "F32");
  EXPECT_FALSE(a.at("tensors").at(0).at("shape").empty());
  EXPECT_EQ(inspect("c").at("tensors").at(0).at("dtype"), "BF16");
  EXPECT_NE(run_lathe({"inspect", "a/model.safetensors"}).out.find("family: not known\n"), std::string::npos);

  const Finished again = run_lathe({"init", config, "--out", "a"});
  EXPECT_EQ(again.code, 2);
  EXPECT_EQ(again.err.rfind("error: --out: a exists and is not an empty folder\n", 0), 0U) << again.err;
}

TEST_F(Files, InspectCountsRollouts) {
  file("r.jsonl",
       "{\"prompt_ids\": [1, 2], \"completion_ids\": [3, 4, 5], \"reward\": 1, \"completion_mask\": [1, 0, "
       "1]}\n"
       "{\"prompt_ids\": [1, 2], \"completion_ids\": [3], \"reward\": 0}\n"
       "{\"prompt_ids\": [7], \"completion_ids\": [], \"reward\": 0}\n");
  const json report = inspect("r.jsonl", 3);
  EXPECT_EQ(report.at("trajectories"), 2);
  EXPECT_EQ(report.at("groups"), 1);
  EXPECT_EQ(report.at("tokens"), 8);
  EXPECT_EQ(report.at("scored_tokens"), 3);
  EXPECT_EQ(report.at("lengths").at("max"), 5);
  EXPECT_EQ(report.at("reward").at("mean"), 0.5);
  EXPECT_EQ(report.at("problems").size(), 1U);
  const Finished text = run_lathe({"inspect", "r.jsonl"});
  EXPECT_NE(text.out.find("trajectories: 2 in 1 groups\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\nproblem: "), std::string::npos) << text.out;
  EXPECT_EQ(text.err,
            "error: r.jsonl:3: completion_ids: empty, expected at least one token id\nhint: the report on "
            "stdout lists "
            "every problem\n");
}

TEST_F(Files, InspectOfWhatWouldBeRefusedIsAnErrorBesideTheReport) {
  std::string garbage;
  for (int i = 0; i < 1000; ++i) garbage += "garbage\n";
  const json report = inspect(file("garbage.txt", garbage), 3);
  EXPECT_EQ(report.at("trajectories"), 0);
  ASSERT_EQ(report.at("problems").size(), 101U);
  EXPECT_EQ(report.at("problems").back(), "garbage.txt: 1000 bad lines altogether");
  EXPECT_EQ(inspect(file("empty.jsonl", ""), 3).at("problems").size(), 1U);

  std::filesystem::create_directories("m");
  std::filesystem::copy_file(golden("llama/model/model.safetensors"), "m/model.safetensors");
  file("m/config.json", R"({"model_type": "gpt2"})");
  EXPECT_EQ(inspect("m", 4).at("problems").size(), 1U);
  std::string config = bytes(golden("llama/model/config.json"));
  const json parsed = json::parse(config);
  json more = parsed;
  more["num_hidden_layers"] = parsed.at("num_hidden_layers").get<int>() + 1;
  file("m/config.json", more.dump());
  EXPECT_EQ(inspect("m", 4).at("missing").size(), 9U);
  // Layers that config.json does not count are not read, and named.
  json fewer = parsed;
  fewer["num_hidden_layers"] = parsed.at("num_hidden_layers").get<int>() - 1;
  file("m/config.json", fewer.dump());
  const json named = inspect("m");
  EXPECT_EQ(named.at("unused").size(), 9U);
  EXPECT_NE(named.at("unused").dump().find("model.layers.2.self_attn.q_proj.weight"), std::string::npos)
      << named.at("unused").dump();
}

TEST_F(Files, InspectOfWhatIsNotThere) {
  EXPECT_EQ(run_lathe({"inspect", "none.jsonl"}).code, 3);
  EXPECT_EQ(run_lathe({"inspect", "none"}).code, 4);
  EXPECT_EQ(run_lathe({"inspect", "."}).code, 4);
  EXPECT_EQ(run_lathe({"inspect", file("bad.safetensors", "12345678{}")}).code, 4);
}

TEST_F(Files, DryRunPrintsThePlanAndTouchesNothing) {
  const Finished done = run_lathe({"train", golden("llama/run.yaml"), "--dry-run", "--set", "run.dir=run"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("plan: 1 steps"), std::string::npos) << done.out;
  EXPECT_FALSE(std::filesystem::exists("run"));
}

TEST_F(Files, KeysAboutLayersThatTheModelDoesNotHave) {
  const std::vector<std::string> score{
      "score", "--model", golden("llama/model"), "--rollouts", golden("llama/rollouts.jsonl"),
      "--out", "out"};
  for (std::vector<std::string> arguments :
       {std::vector<std::string>{"train", golden("llama/run.yaml"), "--set", "run.dir=run"}, score}) {
    arguments.insert(arguments.end(), {"--set", "gdn.chunk=128"});
    const Finished done = run_lathe(arguments);
    EXPECT_EQ(done.code, 2);
    EXPECT_EQ(done.err,
              "error: --set: gdn.chunk = 128: has no effect: it needs gated delta rule layers, and this "
              "model (llama) has "
              "none\nhint: remove it, or leave it at 64\n");
  }
}

TEST_F(Files, ScoreSummaryAsJson) {
  const Finished done = run_lathe({"score", "--model", golden("llama/model"), "--rollouts",
                                   golden("llama/rollouts.jsonl"), "--out", "scored.jsonl", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const json summary = json::parse(done.out);
  for (const char* key :
       {"trajectories", "tokens", "scored_tokens", "seconds", "tokens_per_s", "mean_logprob"}) {
    EXPECT_TRUE(summary.at(key).is_number()) << key;
  }
  EXPECT_LT(summary.at("mean_logprob").get<double>(), 0);
  EXPECT_TRUE(std::filesystem::exists("scored.jsonl"));
}

TEST_F(Files, TheResolvedConfigurationTrainsAgainToTheSameWeights) {
  ASSERT_EQ(
      run_lathe({"train", golden("llama/run.yaml"), "--set", "run.dir=first", "--set", "run.steps=2"}).code,
      0);
  std::filesystem::create_directories("elsewhere");
  std::filesystem::copy_file("first/config.resolved.yaml", "elsewhere/again.yaml");
  const Finished again = run_lathe({"train", "elsewhere/again.yaml", "--set", "run.dir=second"});
  ASSERT_EQ(again.code, 0) << again.err;
  const std::string weights = "/checkpoints/step_000002/model.safetensors";
  EXPECT_FALSE(bytes("first" + weights).empty());
  EXPECT_TRUE(bytes("first" + weights) == bytes("second" + weights));
}

}  // namespace
}  // namespace lathe
