// Configurations that are refused: exit code 2, and the exact text on stderr, before anything is read or written.
#include "cli/run_lathe.h"

namespace lathe {
namespace {

class ConfigFaults : public CommandTest {
 protected:
  static Finished train(const std::string& run_file, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"train", file("run.yaml", run_file)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_lathe(arguments);
  }

  static constexpr const char* kGood =
      "model: {path: model}\n"
      "data: {rollouts: r.jsonl, row_length: 64}\n"
      "run: {dir: run, steps: 1}\n";
};

TEST_F(ConfigFaults, ExitTwoWithPlaceValueExpectationAndHint) {
  const std::string good = kGood;
  const std::vector<std::pair<std::string, std::string>> cases{
      {good + "optimizer: {learning_rates: 1}\n",
       "error: run.yaml:4: unknown option 'optimizer.learning_rates'\nhint: did you mean "
       "'optimizer.learning_rate'?\n"},
      {good + "optimizer: {learning_rate: fast}\n",
       "error: run.yaml:4: optimizer.learning_rate must be a number >= 0, got 'fast'\n"},
      {good + "grpo: {beta: 0.1\n", "error: run.yaml:5: not valid YAML: "},
      {"model: {path: model}\ndata: {rollouts: r.jsonl, row_length: 64}\nrun: {steps: 1}\n",
       "error: run.yaml: required option 'run.dir' is missing\nhint: set it: "},
      {good + "mesh: {fsdp: 2}\n",
       "error: run.yaml:4: mesh (data 1, fsdp 2, context 1, expert 1) is of 2 ranks, this run has 1 rank\n"},
      {good + "engine: {boundary: staged}\n",
       "error: run.yaml:4: engine.boundary = staged: not built in this version"},
      {good + "grpo: {kl_loss_mode: kl}\n",
       "error: run.yaml:4: grpo.kl_loss_mode = kl: has no effect: it needs grpo.beta > 0 (is 0)\n"},
      {std::string("\0\x01\xff\xfe binary", 11), "error: run.yaml"},
      {"[1, 2]\n", "error: run.yaml: is a list, expected sections of keys\n"},
  };
  for (const auto& [text, expected] : cases) {
    const Finished done = train(text);
    EXPECT_EQ(done.code, 2) << text << done.err;
    EXPECT_EQ(done.err.substr(0, expected.size()), expected) << done.err;
    EXPECT_EQ(done.out, "");
    EXPECT_FALSE(std::filesystem::exists("run"));
  }
}

TEST_F(ConfigFaults, SeveralAtOnce) {
  const Finished done =
      train(std::string(kGood) + "grpo: {epsilon: -1, bta: 0}\n", {"--set", "run.steps=none"});
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(done.err,
            "error: run.yaml:4: grpo.epsilon must be a number >= 0, got -1\n"
            "error: run.yaml:4: unknown option 'grpo.bta'\nhint: did you mean 'grpo.beta'?\n"
            "error: --set run.steps=none: run.steps must be an integer in [1, 1000000000], got 'none'\n");
}

TEST_F(ConfigFaults, WhatTheCommandLineNames) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"train", "none.yaml"}, "error: none.yaml: cannot open the run file: No such file or directory\n"},
      {{"train", "."}, "error: .: is a folder, expected a run file (YAML)\n"},
      {{"train", "good.yaml", "--ledger-out", "no/such/l.json"},
       "error: --ledger-out: 'no/such/l.json': there is no folder '"},
      {{"train", "good.yaml", "--gradients-out", "no/such/g.safetensors"},
       "error: --gradients-out: 'no/such/g.safetensors': there is no folder '"},
      {{"train", "good.yaml", "--gradients-out", "."}, "error: --gradients-out: '.' is a folder\n"},
      {{"score", "--model", "m", "--rollouts", "r", "--out", "o", "--set", "grpo.beta=1"},
       "error: --set grpo.beta=1: option 'grpo.beta' does nothing in lathe score\n"},
      {{"score", "--model", "m", "--rollouts", "r", "--out", "o", "--set", "model.path=x"},
       "error: --set model.path=x: lathe score takes the model from --model\n"},
      {{"score", "--model", "m", "--rollouts", "r", "--out", "no/such/o"},
       "error: --out: 'no/such/o': there is no folder"},
  };
  file("good.yaml", kGood);
  for (const auto& [arguments, expected] : cases) {
    const Finished done = run_lathe(arguments);
    EXPECT_EQ(done.code, 2) << expected << done.err;
    EXPECT_EQ(done.err.substr(0, expected.size()), expected) << done.err;
  }
}

TEST_F(ConfigFaults, RanksAndMeshMustAgree) {
  const std::string run = file("run.yaml", kGood);
  const Finished done = run_lathe({"train", run}, {"OMPI_COMM_WORLD_SIZE=2"});
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(
      done.err,
      "error: mesh: mesh (data 1, fsdp 1, context 1, expert 1) is of 1 rank, this run has 2 ranks\n"
      "hint: start it with mpirun -np 1, or change the mesh: an axis of -1 takes all ranks that are left\n");
  // Of a rank that is not the first, by its number.
  const Finished second =
      run_lathe({"score", "--model", "m", "--rollouts", "r", "--out", "o", "--set", "mesh.expert=3"},
                {"OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2"});
  EXPECT_EQ(second.code, 2);
  EXPECT_EQ(
      second.err.substr(0, second.err.find('\n')),
      "error: rank 2: --set: mesh (data 1, fsdp 1, context 1, expert 3) is of 3 ranks, this run has 4 ranks");
  const Finished foreign = run_lathe({"train", run}, {"PMI_SIZE=2"});
  EXPECT_EQ(foreign.code, 2);
  EXPECT_EQ(foreign.err,
            "error: mesh: this process is one of 2 that another launcher started (PMI_SIZE)\n"
            "hint: start the ranks with Open MPI's mpirun\n");
}

TEST_F(ConfigFaults, AMissingModelIsAModelError) {
  const Finished done = run_lathe({"train", file("run.yaml", kGood)});
  EXPECT_EQ(done.code, 4) << done.err;
  EXPECT_EQ(done.err.substr(done.err.find("error:"), 7), "error: ") << done.err;
  EXPECT_FALSE(std::filesystem::exists("run"));
}

}  // namespace
}  // namespace lathe
