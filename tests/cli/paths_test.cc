// Paths that are not what they should be: pipes in place of files, and outputs that would replace inputs.
#include <sys/stat.h>

#include "cli/golden_run.h"

namespace lathe {
namespace {

class Paths : public GoldenRun {
 protected:
  static void pipe(const std::string& name) {
    std::filesystem::remove(name);
    ASSERT_EQ(::mkfifo(name.c_str(), 0600), 0);
  }
};

TEST_F(Paths, PipesAndDevicesInPlaceOfFilesAreRefusedAtOnce) {
  pipe("p");
  expect_refused(score({}, "p"), 3,
                 "error: p: is a pipe, expected a rollout file\nhint: write the rollouts to a file first\n");
  expect_refused(score({}, "/dev/zero"), 3, "error: /dev/zero: is a device, expected a rollout file\n");
  const std::string here = std::filesystem::current_path().string();
  expect_refused(train({"--set", "data.rollouts=p"}), 3,
                 "error: " + here + "/p: is a pipe, expected a rollout file\n");
  pipe("rollouts.jsonl");
  expect_refused(train(), 3, "error: " + here + "/rollouts.jsonl: is a pipe, expected a rollout file\n");
  expect_refused(run_lathe({"train", "p"}), 2, "error: p: is a pipe, expected a run file (YAML)\n");
  expect_refused(run_lathe({"inspect", "p"}), 3, "error: p: is a pipe, expected a rollout file\n");
  expect_refused(run_lathe({"init", "p", "--out", "new"}), 4,
                 "error: p: is a pipe, expected a file\nhint: copy it to a file first\n");
  pipe("p.safetensors");
  expect_refused(run_lathe({"inspect", "p.safetensors"}), 4, "error: p.safetensors: is a");
  pipe("model/config.json");
  expect_refused(score(), 4, "error: " + here + "/model/config.json: is a pipe, expected a file\n");
}

TEST_F(Paths, AnInputIsNeverReplacedByAnOutput) {
  const std::string here = std::filesystem::current_path().string();
  const std::string rollouts = bytes("rollouts.jsonl");
  std::filesystem::create_symlink("rollouts.jsonl", "link.jsonl");
  std::filesystem::create_hard_link("rollouts.jsonl", "hard.jsonl");
  for (const char* out : {"rollouts.jsonl", "./model/../rollouts.jsonl", "link.jsonl", "hard.jsonl"}) {
    expect_refused(score({}, "rollouts.jsonl", out), 2,
                   std::string("error: --out: '") + out +
                       "' would replace the input 'rollouts.jsonl'\nhint: choose another path\n");
    expect_refused(train({"--gradients-out", out}), 2,
                   std::string("error: --gradients-out: '") + out + "' would replace the input '" + here +
                       "/rollouts.jsonl'\n");
  }
  expect_refused(
      score({}, "rollouts.jsonl", "model/config.json"), 2,
      "error: --out: 'model/config.json' would replace the input '" + here + "/model/config.json'\n");
  expect_refused(train({"--gradients-out", "model/model.safetensors"}), 2,
                 "error: --gradients-out: 'model/model.safetensors' would replace the input '");
  expect_refused(train({"--gradients-out", "run.yaml"}), 2,
                 "error: --gradients-out: 'run.yaml' would replace the input 'run.yaml'\n");
  std::filesystem::rename("rollouts.jsonl", "x.jsonl.partial");
  expect_refused(score({}, "x.jsonl.partial", "x.jsonl"), 2,
                 "error: --out: 'x.jsonl' would replace the input");
  EXPECT_EQ(bytes("x.jsonl.partial"), rollouts);
}

TEST_F(Paths, AnEarlierOutputIsReplaced) {
  file("scored.jsonl", "old");
  file("g.safetensors", "old");
  EXPECT_EQ(score().code, 0);
  EXPECT_NE(bytes("scored.jsonl"), "old");
  const Finished done = train({"--gradients-out", "g.safetensors"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(bytes("g.safetensors"), "old");
}

}  // namespace
}  // namespace lathe
