// Configurations that only show to be wrong beside the model, the data or the machine: exit code 2; and what may be
// tried again: exit code 75.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "cli/golden_run.h"

namespace lathe {
namespace {

class RunFaults : public GoldenRun {};

TEST_F(RunFaults, RunFoldersThatCannotBeUsed) {
  file("taken", "x");
  const std::string here = std::filesystem::current_path().string();
  expect_refused(
      train({"--set", "run.dir=taken"}), 2,
      "error: run.dir: '" + here + "/taken' is a file, expected a folder\nhint: choose another run.dir\n");
  expect_refused(train({"--set", "run.dir=taken/below"}), 2,
                 "error: run.dir: '" + here + "/taken/below' cannot be");
  // Not even root makes folders there.
  const Finished proc = train({"--set", "run.dir=/proc/lathe_run"});
  EXPECT_EQ(proc.code, 2) << proc.err;
  EXPECT_NE(proc.err.find("error: "), std::string::npos) << proc.err;
  EXPECT_NE(proc.err.find("/proc/lathe_run"), std::string::npos) << proc.err;
  EXPECT_NE(proc.err.find("\nhint: choose a"), std::string::npos) << proc.err;

  std::filesystem::create_directories("busy");
  const int lock = ::open("busy/.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  const Finished busy = train({"--set", "run.dir=busy"});
  ::close(lock);
  EXPECT_EQ(busy.code, 2);
  EXPECT_NE(
      busy.err.find("error: run.dir: '" + here + "/busy' is in use by another lathe\nhint: wait for it"),
      std::string::npos)
      << busy.err;
  std::filesystem::create_directories("old/x");
  expect_refused(train({"--set", "run.dir=old", "--set", "run.resume=never"}), 2,
                 "error: run.dir: '" + here + "/old' is not empty, and run.resume is never\n");
}

TEST_F(RunFaults, SettingsThatNeedWhatIsNotThere) {
  const std::string here = std::filesystem::current_path().string();
  expect_refused(train({"--set", "grpo.beta=0.1"}), 2,
                 "error: grpo.beta: 0.1 needs reference log-probs, but " + here +
                     "/rollouts.jsonl:1 has no ref_logprobs\nhint: set grpo.reference to initial");
  expect_refused(train({"--set", "model.trainable=[no_such_tensor]"}), 2, "error: model.trainable: ");
  expect_refused(
      train({"--set", "mesh.data=2", "--set", "mesh.expert=3"}), 2,
      "error: --set: mesh (data 2, fsdp 1, context 1, expert 3) is of 6 ranks, this run has 1 rank\n");
  expect_refused(train({"--set", "run.device=cuda"}), 2, "error: --set run.device=cuda: run.device must be ");
  expect_refused(run_lathe({"train", "run.yaml"}, {"LATHE_ISA=sse9"}), 2,
                 "error: LATHE_ISA: unknown instruction set 'sse9'\nhint: use avx2, ");
}

TEST_F(RunFaults, FullDisksAreRetryable) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Finished scored = score({}, "rollouts.jsonl", "/dev/full");
  EXPECT_EQ(scored.code, 75) << scored.err;
  EXPECT_NE(
      scored.err.find("error: /dev/full: cannot be written: No space left on device\nhint: free some space"),
      std::string::npos)
      << scored.err;
  const Finished trained = train({"--gradients-out", "/dev/full"});
  EXPECT_EQ(trained.code, 75) << trained.err;
}

TEST_F(RunFaults, SuccessIsZeroAndSaysWhereThingsAre) {
  const Finished done = train();
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("/run/checkpoints/step_000001"), std::string::npos) << done.out;
}

}  // namespace
}  // namespace lathe
