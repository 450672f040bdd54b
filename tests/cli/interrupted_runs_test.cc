// Runs of the binary that are stopped, killed or out of disk, and gone on with by the same command.
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/mount.h>

#include "cli/golden_run.h"

namespace lathe {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

class InterruptedRuns : public GoldenRun {
 protected:
  void SetUp() override {
    GoldenRun::SetUp();
    copy("qwen3_5_moe");
    file("run.yaml",
         "model: {path: model, compute_dtype: f32}\n"
         "data: {rollouts: rollouts.jsonl, row_length: 256, trajectories_per_step: 4}\n"
         "optimizer: {learning_rate: 1.0e-4, schedule: cosine, warmup_steps: 3}\n"
         "run: {dir: run, steps: 20}\n");
  }

  static std::vector<std::string> command(const std::string& dir, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"train",         "run.yaml", "--set",
                                       "run.threads=1", "--set",    "run.dir=" + dir};
    for (const std::string& set : more) arguments.insert(arguments.end(), {"--set", set});
    return arguments;
  }
  static std::vector<json> metrics(const std::string& dir) {
    std::vector<json> lines;
    std::ifstream text(dir + "/metrics.jsonl");
    for (std::string line; std::getline(text, line);) {
      json whole = json::parse(line);
      json kept;
      for (const auto& [key, value] : whole.items()) {
        const bool varies =
            key.starts_with("time") || key.starts_with("perf/") || key.find('.') != std::string::npos;
        if (!varies) kept[key] = value;
      }
      lines.push_back(kept);
    }
    return lines;
  }
  static int lines_in(const std::string& dir) {
    const std::string text = bytes(dir + "/metrics.jsonl");
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }
  static void expect_equal(const std::string& a, const std::string& b, const std::string& step) {
    for (const char* name : {"/model.safetensors", "/trainer/optimizer.safetensors"}) {
      const std::string expected = bytes(a + "/checkpoints/" + step + name);
      EXPECT_FALSE(expected.empty()) << name;
      EXPECT_TRUE(expected == bytes(b + "/checkpoints/" + step + name)) << name;
    }
    EXPECT_EQ(metrics(a), metrics(b));
  }
  void rest() { std::this_thread::sleep_for(std::chrono::microseconds(random_() % 30000)); }

  std::minstd_rand random_{7};
};

TEST_F(InterruptedRuns, SignalsCostNothing) {
  ASSERT_EQ(run_lathe(command("straight")).code, 0);
  const std::vector<std::pair<int, const char*>> signals{
      {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}};
  int stops = 0;
  for (int done_before = 0; done_before < 20;) {
    RunningLathe lathe(command("stopped"));
    const bool ready = lathe.wait_until([&] { return lines_in("stopped") > done_before; });
    if (ready) rest();
    const auto& [number, name] = signals[static_cast<size_t>(++stops) % signals.size()];
    lathe.signal(number);
    const Finished done = lathe.finish();
    if (done.code == 0) break;
    ASSERT_EQ(done.code, 75) << done.err;
    EXPECT_NE(done.err.find(std::string("stopped by ") + name + " after step"), std::string::npos)
        << done.err;
    EXPECT_NE(done.out.find("checkpoint: " + fs::absolute("stopped/checkpoints/step_0000").string()),
              std::string::npos)
        << done.out;
    done_before = lines_in("stopped");
  }
  EXPECT_GE(stops, 2);
  expect_equal("straight", "stopped", "step_000020");
}

TEST_F(InterruptedRuns, KillsCostNoCompleteCheckpoint) {
  ASSERT_EQ(run_lathe(command("straight")).code, 0);
  int kills = 0;
  for (; kills < 10; ++kills) {
    RunningLathe lathe(command("killed", {"run.save_every=1"}));
    // Somewhere in the second step from here on, or in its save.
    const int before = lines_in("killed");
    const bool ready = lathe.wait_until([&] { return lines_in("killed") != before; });
    if (ready) rest();
    lathe.signal(SIGKILL);
    const Finished done = lathe.finish();
    if (done.code == 0) break;
    ASSERT_EQ(done.code, 128 + SIGKILL) << done.err;
  }
  EXPECT_GE(kills, 5);
  const Finished done = run_lathe(command("killed", {"run.save_every=1"}));
  ASSERT_EQ(done.code, 0) << done.err;
  expect_equal("straight", "killed", "step_000020");
  for (const auto& entry : fs::directory_iterator("killed/checkpoints")) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
  }
}

TEST_F(InterruptedRuns, ASignalWhileTheRunStartsEndsItAtOnce) {
  std::string many;
  for (int i = 0; i < 300; ++i) many += bytes("rollouts.jsonl");
  file("many.jsonl", many);
  fs::create_directories("run");
  RunningLathe lathe(command("run", {"data.rollouts=many.jsonl"}));
  ASSERT_TRUE(lathe.wait_until([] { return fs::exists("run/.lock"); }));
  lathe.signal(SIGTERM);
  const Finished done = lathe.finish();
  EXPECT_EQ(done.code, 75);
  EXPECT_NE(done.err.find("stopped before the first step: nothing was trained\n"), std::string::npos)
      << done.err;
}

TEST_F(InterruptedRuns, ASecondSignalKills) {
  // Plain loops: the queued micro-batches take long enough for the second one.
  std::string many;
  for (int i = 0; i < 4; ++i) many += bytes("rollouts.jsonl");
  file("many.jsonl", many);
  RunningLathe lathe(command("run", {"run.device=ref", "data.rollouts=many.jsonl",
                                     "data.trajectories_per_step=0", "data.row_length=1024"}));
  ASSERT_TRUE(lathe.wait_until([] { return lines_in("run") > 0; }));
  lathe.signal(SIGTERM);
  lathe.signal(SIGINT);
  EXPECT_GT(lathe.finish().code, 128);
  EXPECT_TRUE(fs::is_empty("run/checkpoints"));
}

TEST_F(InterruptedRuns, StopAfterAndTheSameCommandAgain) {
  std::vector<std::string> stop = command("run", {"run.steps=4"});
  stop.insert(stop.end(), {"--stop-after", "2:1"});
  const Finished stopped = run_lathe(stop);
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_EQ(stopped.out, "checkpoint: " + fs::absolute("run/checkpoints/step_000002-mb0001").string() + "\n");
  EXPECT_EQ(bytes("run/checkpoints/latest"), "step_000002-mb0001\n");
  const Finished done = run_lathe(command("run", {"run.steps=4"}));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.err.find("going on from " + fs::absolute("run/checkpoints/step_000002-mb0001").string()),
            std::string::npos)
      << done.err;
  EXPECT_FALSE(fs::exists("run/checkpoints/step_000002-mb0001"));
  EXPECT_EQ(lines_in("run"), 4);
}

TEST_F(InterruptedRuns, AnotherConfigurationIsRefusedByName) {
  ASSERT_EQ(run_lathe(command("run", {"run.steps=1"})).code, 0);
  const Finished other =
      run_lathe(command("run", {"run.steps=2", "optimizer.learning_rate=0.5", "engine.max_inflight=3"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find(
                "the run cannot go on with another configuration: optimizer.learning_rate is 0.5, and was "
                "0.0001; engine.max_inflight is 3, and was 2\n"),
            std::string::npos)
      << other.err;
  const Finished more =
      run_lathe(command("run", {"run.steps=2", "run.save_every=1", "run.keep=1", "run.threads=2"}));
  EXPECT_EQ(more.code, 0) << more.err;
  const Finished never = run_lathe(command("run", {"run.resume=never"}));
  EXPECT_EQ(never.code, 2);
  EXPECT_NE(never.err.find("is not empty, and run.resume is never"), std::string::npos) << never.err;
}

TEST_F(InterruptedRuns, AFolderInUseIsRefused) {
  RunningLathe lathe(command("run", {"run.steps=100000"}));
  ASSERT_TRUE(lathe.wait_until([] { return lines_in("run") > 0; }));
  const Finished second = run_lathe(command("run", {"run.steps=100000"}));
  EXPECT_EQ(second.code, 2);
  EXPECT_NE(second.err.find("is in use by another lathe"), std::string::npos) << second.err;
}

TEST_F(InterruptedRuns, StopPointsThatAreNone) {
  for (const auto& [point, fault] : std::vector<std::pair<std::string, std::string>>{
           {"x", "--stop-after: 'x' is neither STEP nor STEP:MICRO_BATCH"},
           {"0", "--stop-after: '0' is neither STEP nor STEP:MICRO_BATCH"},
           {"1:", "--stop-after: '1:' is neither STEP nor STEP:MICRO_BATCH"},
           {"-1", "--stop-after: '-1' is neither STEP nor STEP:MICRO_BATCH"},
           {"21", "--stop-after: '21' is beyond the end of the run: run.steps is 20"},
           {"20:1", "--stop-after: '20:1' is beyond the end of the run: run.steps is 20"}}) {
    std::vector<std::string> arguments = command("run");
    arguments.push_back("--stop-after=" + point);
    const Finished done = run_lathe(arguments);
    EXPECT_EQ(done.code, 2) << point;
    EXPECT_NE(done.err.find(fault), std::string::npos) << done.err;
    EXPECT_FALSE(fs::exists("run"));
  }
}

// A file system of its own that is as large as said.
class SmallDisk {
 public:
  explicit SmallDisk(uintmax_t bytes) {
    fs::create_directories("disk");
    mounted_ = mount("none", "disk", "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount("disk");
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }

 private:
  bool mounted_ = false;
};

TEST_F(InterruptedRuns, AFullDiskKeepsTheCheckpointBeforeAndTheRunGoesOn) {
  ASSERT_EQ(run_lathe(command("straight", {"run.steps=3"})).code, 0);
  uintmax_t checkpoint = 0;
  for (const auto& entry : fs::recursive_directory_iterator("straight/checkpoints/step_000003")) {
    if (entry.is_regular_file()) checkpoint += entry.file_size();
  }
  const SmallDisk disk(2 * checkpoint + checkpoint / 2);
  if (!disk.mounted()) GTEST_SKIP() << "no permission to mount a small file system";
  // keep 2 needs room for a third while it is written.
  const Finished full = run_lathe(command("disk/run", {"run.steps=3", "run.save_every=1"}));
  EXPECT_EQ(full.code, 75) << full.err;
  EXPECT_NE(full.err.find("a checkpoint needs "), std::string::npos) << full.err;
  EXPECT_NE(
      full.err.find("the newest checkpoint is " + fs::absolute("disk/run/checkpoints/step_00000").string()),
      std::string::npos)
      << full.err;
  const Finished done = run_lathe(command("disk/run", {"run.steps=3", "run.keep=1"}));
  EXPECT_EQ(done.code, 75) << done.err;  // said before anything is trained
  EXPECT_EQ(done.err.find("step 3/3"), std::string::npos) << done.err;
  fs::remove_all("disk/run/checkpoints/step_000001");
  const Finished last = run_lathe(command("disk/run", {"run.steps=3", "run.keep=1"}));
  EXPECT_EQ(last.code, 0) << last.err;
  expect_equal("straight", "disk/run", "step_000003");
}

TEST_F(InterruptedRuns, ASaveBesideTheStepsThatFailsEndsTheRun) {
  ASSERT_EQ(run_lathe(command("straight", {"run.steps=1"})).code, 0);
  uintmax_t checkpoint = 0;
  for (const auto& entry : fs::recursive_directory_iterator("straight/checkpoints/step_000001")) {
    if (entry.is_regular_file()) checkpoint += entry.file_size();
  }
  const SmallDisk disk(2 * checkpoint);
  if (!disk.mounted()) GTEST_SKIP() << "no permission to mount a small file system";
  const Finished full = run_lathe(command("disk/run", {"run.save_every=1"}));
  EXPECT_EQ(full.code, 75) << full.err;
  EXPECT_NE(
      full.err.find("the newest checkpoint is " + fs::absolute("disk/run/checkpoints/step_000001").string()),
      std::string::npos)
      << full.err;
  EXPECT_LT(lines_in("disk/run"), 20);
}

}  // namespace
}  // namespace lathe
