// A run that was stopped and gone on with ends with the bits of one that was not.
#include "lathe/loop/resume.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/model/checkpoint.h"

#include "support/temp_folder.h"

namespace lathe {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::bytes_of_file;
using test::error_of;

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string golden = std::string(LATHE_GOLDENS) + "/qwen3_5_moe";
    config_.model.path = golden + "/model";
    config_.model.compute_dtype = "f32";
    config_.data.rollouts = golden + "/rollouts.jsonl";
    config_.data.row_length = 256;
    config_.data.trajectories_per_step = 4;
    config_.optimizer.learning_rate = 1e-3;
    config_.optimizer.schedule = LrSchedule::kCosine;
    config_.optimizer.warmup_steps = 2;
    config_.optimizer.weight_decay = 0.1;
    config_.run.steps = 5;
    config_.run.threads = 1;
    config_.run.keep = 10;
  }

  [[nodiscard]] std::string dir(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::string checkpoint(const std::string& name, const std::string& step) const {
    return dir(name) + "/checkpoints/" + step;
  }

  // The exit code; what goes to stdout is appended to out_.
  int train_in(const std::string& name, TrainOptions options = {}) {
    config_.run.dir = dir(name);
    options.settings = settings_;
    Log log(false);
    return train(config_, options, log, [this](const std::string& line) { out_ += line + "\n"; });
  }
  int stop_after(const std::string& name, const std::string& point) {
    TrainOptions options;
    options.stop_after = point;
    return train_in(name, options);
  }
  // Runs straight through, then again with these stops, and compares.
  void expect_same_with_stops(const std::vector<std::string>& stops) {
    ASSERT_EQ(train_in("straight"), 0);
    for (const std::string& stop : stops) ASSERT_EQ(stop_after("stopped", stop), 75) << stop;
    ASSERT_EQ(train_in("stopped"), 0);
    expect_equal("straight", "stopped");
  }
  void expect_equal(const std::string& a, const std::string& b) const {
    const std::string last = CheckpointName{.step = config_.run.steps, .micro_batches = 0}.text();
    for (const char* file : {"model.safetensors", "trainer/optimizer.safetensors"}) {
      const std::string expected = bytes_of_file(checkpoint(a, last) + "/" + file);
      EXPECT_FALSE(expected.empty()) << file;
      EXPECT_TRUE(expected == bytes_of_file(checkpoint(b, last) + "/" + file)) << file;
    }
    EXPECT_EQ(metrics(a), metrics(b));
  }
  // Without what depends on the clock.
  [[nodiscard]] std::vector<Json> metrics(const std::string& name) const {
    std::vector<Json> out;
    std::ifstream in(dir(name) + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      Json json = Json::parse(line);
      for (auto it = json.begin(); it != json.end();) {
        const std::string& key = it.key();
        const bool clock =
            key.starts_with("time") || key.starts_with("perf/") || key.find('.') != std::string::npos;
        it = clock ? json.erase(it) : std::next(it);
      }
      out.push_back(json);
    }
    return out;
  }

  // A copy of a rollout file without these keys.
  [[nodiscard]] std::string without(const std::string& rollouts, const std::vector<std::string>& keys) const {
    std::ifstream in(rollouts);
    std::string text;
    for (std::string line; std::getline(in, line);) {
      Json json = Json::parse(line);
      for (const std::string& key : keys) json.erase(key);
      text += json.dump() + "\n";
    }
    return folder_.write("without.jsonl", text);
  }

  test::TempFolder folder_;
  RunConfig config_;
  std::vector<Setting> settings_;
  std::string out_;
};

TEST_F(ResumeTest, BetweenStepsAndBetweenMicroBatches) {
  expect_same_with_stops({"1", "2:1", "2:2", "4"});
  EXPECT_EQ(metrics("stopped").size(), 5U);
  EXPECT_FALSE(fs::exists(checkpoint("stopped", "step_000002-mb0002")));  // gone with the next full one
  EXPECT_TRUE(fs::exists(checkpoint("stopped", "step_000004/COMPLETE")));
}

TEST_F(ResumeTest, AfterAllMicroBatchesOfAStep) {
  expect_same_with_stops({"0:1", "1:3"});
}

TEST_F(ResumeTest, WithBf16Storage) {
  config_.model.weight_dtype = "bf16";
  config_.model.compute_dtype = "bf16";
  config_.run.threads = 2;
  expect_same_with_stops({"2", "3:1"});
}

// Masters are more exact than the files: they are stored.
TEST_F(ResumeTest, WithBf16Files) {
  const std::string model = folder_ / "model";
  initialize_model(config_.model.path, model, 3, "bf16");
  config_.model.path = model;
  for (const char* storage : {"f32", "bf16"}) {
    SCOPED_TRACE(storage);
    config_.model.weight_dtype = storage;
    expect_same_with_stops({"2", "3:1"});
    fs::remove_all(dir("straight"));
    fs::remove_all(dir("stopped"));
  }
}

// What was computed with the weights at the batch's start cannot be computed again.
TEST_F(ResumeTest, WithinABatchOfSeveralStepsAndAReference) {
  config_.grpo.num_iterations = 2;
  config_.grpo.beta = 0.1;
  config_.grpo.reference_initial = true;
  config_.grpo.entropy_coef = 0.01;
  config_.optimizer.warmup_steps = 0;
  config_.data.rollouts = without(config_.data.rollouts, {"old_logprobs", "ref_logprobs"});
  expect_same_with_stops({"1", "1:1", "2:1", "3:2"});
  EXPECT_NE(metrics("stopped")[1]["policy/approx_kl"], 0.0);
  EXPECT_NE(metrics("stopped")[3]["policy/approx_kl"], 0.0);
}

TEST_F(ResumeTest, WithinTheWindowOfSpikes) {
  config_.optimizer.spike_window = 4;
  config_.optimizer.spike_factor = 0;  // any value above the mean
  expect_same_with_stops({"2", "3"});
  double skipped = 0;
  for (const Json& line : metrics("stopped")) skipped += line["optim/skipped"].get<double>();
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 4);
}

TEST_F(ResumeTest, WithPartsThatDoNotTrain) {
  config_.model.trainable = {"layers\\.1\\.mlp", "experts.*down", "embed"};
  expect_same_with_stops({"1:1", "3"});
}

TEST_F(ResumeTest, OnAnotherNumberOfThreads) {
  ASSERT_EQ(train_in("straight"), 0);
  ASSERT_EQ(stop_after("stopped", "1:2"), 75);
  config_.run.threads = 2;
  ASSERT_EQ(stop_after("stopped", "3"), 75);
  config_.run.threads = 3;
  ASSERT_EQ(train_in("stopped"), 0);
  expect_equal("straight", "stopped");
}

// An epoch of 3 batches: the last step of one, and the first of the next.
TEST_F(ResumeTest, AtTheEndOfTheFilesTrainsTheRest) {
  config_.optimizer.schedule = LrSchedule::kConstant;
  config_.run.steps = 7;
  ASSERT_EQ(train_in("straight"), 0);
  for (const int64_t steps : {3, 6, 7}) {
    config_.run.steps = steps;
    ASSERT_EQ(train_in("stopped"), 0);
  }
  expect_equal("straight", "stopped");
  EXPECT_EQ(metrics("stopped")[6]["data/epoch"], 2.0);
}

TEST_F(ResumeTest, NothingToDoIsSaid) {
  config_.run.steps = 2;
  ASSERT_EQ(train_in("run"), 0);
  out_.clear();
  EXPECT_EQ(train_in("run"), 0);
  EXPECT_EQ(out_, "nothing to do: " + checkpoint("run", "step_000002") +
                      " has all 2 steps; raise run.steps to go on\n");
  EXPECT_EQ(metrics("run").size(), 2U);
}

TEST_F(ResumeTest, SavesBesideTheStepsChangeNothing) {
  ASSERT_EQ(train_in("straight"), 0);
  config_.run.save_every = 1;
  config_.run.keep = 3;
  ASSERT_EQ(train_in("saved"), 0);
  expect_equal("straight", "saved");
  EXPECT_EQ(Checkpoints(dir("saved") + "/checkpoints").complete().size(), 3U);
  // A checkpoint written beside a step is the same as one written alone.
  ASSERT_EQ(stop_after("stopped", "4"), 75);
  for (const char* file : {"model.safetensors", "trainer/optimizer.safetensors"}) {
    EXPECT_TRUE(bytes_of_file(checkpoint("saved", "step_000004") + "/" + file) ==
                bytes_of_file(checkpoint("stopped", "step_000004") + "/" + file));
  }
}

TEST_F(ResumeTest, TheNewestCompleteOneWinsWhateverLatestSays) {
  config_.run.save_every = 1;
  config_.run.steps = 3;
  ASSERT_EQ(train_in("run"), 0);
  std::ofstream(dir("run") + "/checkpoints/latest") << "step_000001\n";
  fs::remove(checkpoint("run", "step_000003") + "/COMPLETE");
  config_.run.steps = 5;
  config_.optimizer.schedule = LrSchedule::kConstant;
  ASSERT_EQ(train_in("run"), 0);
  EXPECT_NE(bytes_of_file(dir("run") + "/log.txt").find("going on from " + checkpoint("run", "step_000002")),
            std::string::npos);
  EXPECT_EQ(metrics("run").size(), 5U);
}

TEST_F(ResumeTest, AStopRequestIsHeardBetweenMicroBatches) {
  ASSERT_EQ(train_in("straight"), 0);
  int asked = 0;
  TrainOptions options;
  options.stop_requested = [&asked] { return std::string(++asked == 3 ? "SIGTERM" : ""); };
  for (int i = 0; i < 20; ++i) {
    asked = 0;
    const int code = train_in("stopped", options);
    if (code == 0) break;
    ASSERT_EQ(code, 75);
  }
  expect_equal("straight", "stopped");
  EXPECT_NE(
      bytes_of_file(dir("stopped") + "/log.txt").find(" micro-batches of step 3: the same command goes on"),
      std::string::npos);
}

TEST_F(ResumeTest, AStopBeforeAnythingIsTrainedSavesNothing) {
  TrainOptions options;
  bool started = false;
  options.started = [&started] { started = true; };
  options.stop_requested = [] { return std::string("SIGINT"); };
  EXPECT_EQ(train_in("run", options), 75);
  EXPECT_TRUE(started);
  EXPECT_TRUE(fs::is_empty(dir("run") + "/checkpoints"));
  EXPECT_EQ(train_in("run"), 0);
}

TEST_F(ResumeTest, AStopPointThatAStepDoesNotHaveIsItsEnd) {
  EXPECT_EQ(stop_after("run", "1:50"), 75);
  EXPECT_EQ(Checkpoints(dir("run") + "/checkpoints").complete().back().text(), "step_000002");
  EXPECT_NE(bytes_of_file(dir("run") + "/log.txt").find("--stop-after 1:50 (step 2 has only"),
            std::string::npos);
  EXPECT_EQ(stop_after("run", "2"), 75);  // it is there: nothing more is trained
  EXPECT_EQ(metrics("run").size(), 2U);
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { static_cast<void>(stop_after("run", "1")); })
                .find("--stop-after: '1' is behind the run"),
            std::string::npos);
}

TEST_F(ResumeTest, AFileThatCannotBeReadLeavesACheckpointAtIt) {
  const std::string rollouts = folder_ / "rollouts";
  fs::create_directories(rollouts);
  for (const char* name : {"/step_000000.jsonl", "/step_000001.jsonl", "/step_000002.jsonl"}) {
    fs::copy(config_.data.rollouts, rollouts + name);
  }
  config_.data.rollouts = rollouts;
  config_.data.trajectories_per_step = 0;
  config_.run.steps = 3;
  ASSERT_EQ(train_in("straight"), 0);
  const std::string good = bytes_of_file(rollouts + "/step_000001.jsonl");
  std::ofstream(rollouts + "/step_000001.jsonl") << "not JSON\n";
  EXPECT_NE(
      error_of(ErrorKind::kData, [&] { static_cast<void>(train_in("stopped")); }).find("step_000001.jsonl:1"),
      std::string::npos);
  EXPECT_NE(
      error_of(ErrorKind::kData, [&] { static_cast<void>(train_in("stopped")); }).find("step_000001.jsonl:1"),
      std::string::npos);
  std::ofstream(rollouts + "/step_000001.jsonl") << good;
  ASSERT_EQ(train_in("stopped"), 0);
  expect_equal("straight", "stopped");
}

TEST_F(ResumeTest, UsedRolloutFilesKeepTheirNamesAndNewOnesGoToTheEnd) {
  const std::string rollouts = folder_ / "rollouts";
  fs::create_directories(rollouts);
  for (const char* name : {"/step_000001.jsonl", "/step_000002.jsonl"}) {
    fs::copy(config_.data.rollouts, rollouts + name);
  }
  config_.data.rollouts = rollouts;
  config_.run.steps = 7;
  ASSERT_EQ(stop_after("run", "4"), 75);
  fs::copy(rollouts + "/step_000001.jsonl", rollouts + "/step_000000.jsonl");
  EXPECT_NE(error_of(ErrorKind::kData, [&] { static_cast<void>(train_in("run")); })
                .find("file 1 of the run was '" + rollouts + "/step_000001.jsonl' and is '" + rollouts +
                      "/step_000000.jsonl' now"),
            std::string::npos);
  fs::rename(rollouts + "/step_000000.jsonl", rollouts + "/step_000003.jsonl");
  const std::string second = bytes_of_file(rollouts + "/step_000002.jsonl");
  std::ofstream(rollouts + "/step_000002.jsonl", std::ios::app) << second;
  EXPECT_NE(error_of(ErrorKind::kData, [&] { static_cast<void>(train_in("run")); })
                .find("had " + std::to_string(second.size())),
            std::string::npos);
  std::ofstream(rollouts + "/step_000002.jsonl") << second;
  ASSERT_EQ(train_in("run"), 0);
  EXPECT_EQ(metrics("run")[6]["data/epoch"], 0.0);  // the seventh batch is of the new file
}

// Two files of different sizes, left off in the middle of each in the second epoch.
TEST_F(ResumeTest, InALaterEpochOfSeveralFiles) {
  const std::string rollouts = folder_ / "rollouts";
  fs::create_directories(rollouts);
  fs::copy(config_.data.rollouts, rollouts + "/step_000002.jsonl");
  {
    std::ifstream in(config_.data.rollouts);
    std::ofstream out(rollouts + "/step_000001.jsonl");
    std::string line;
    for (int i = 0; i < 4 && std::getline(in, line); ++i) out << line << "\n";
  }
  config_.data.rollouts = rollouts;
  config_.data.trajectories_per_step = 0;
  config_.grpo.num_iterations = 2;
  config_.run.steps = 9;
  expect_same_with_stops({"5", "6:1", "7"});
}

TEST_F(ResumeTest, ANamedCheckpointBeginsABranch) {
  config_.run.save_every = 1;
  ASSERT_EQ(train_in("straight"), 0);
  config_.run.resume = checkpoint("straight", "step_000002");
  ASSERT_EQ(stop_after("branch", "3"), 75);
  ASSERT_EQ(train_in("branch"), 0);  // the same command goes on with the branch
  EXPECT_EQ(Checkpoints(dir("straight") + "/checkpoints").complete().size(), 5U);
  const std::vector<Json> lines = metrics("branch");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[2], metrics("straight")[4]);
  // The same folder: what comes after is superseded, and kept.
  ASSERT_EQ(stop_after("straight", "3"), 75);
  EXPECT_EQ(metrics("straight").size(), 3U);
  EXPECT_TRUE(fs::exists(checkpoint("straight", "superseded_step_000005")));
  EXPECT_EQ(bytes_of_file(dir("straight") + "/checkpoints/latest"), "step_000003\n");
  ASSERT_EQ(train_in("straight"), 0);
  EXPECT_EQ(metrics("straight").size(), 5U);
  EXPECT_EQ(metrics("straight")[4], lines[2]);
  // Another run's folder is not for this branch.
  config_.run.resume = checkpoint("branch", "step_000004");
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { static_cast<void>(train_in("straight")); })
                .find("did not begin from"),
            std::string::npos);
  config_.run.resume = dir("branch");
  EXPECT_NE(error_of(ErrorKind::kModel, [&] { static_cast<void>(train_in("other")); })
                .find("its newest checkpoint is checkpoints/step_000005"),
            std::string::npos);
  config_.run.resume = "never";
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { static_cast<void>(train_in("straight")); }).find("not empty"),
            std::string::npos);
}

TEST_F(ResumeTest, EverySettingThatDiffersIsNamed) {
  settings_ = {{"optimizer.learning_rate", "0.001", "1e-06"},
               {"grpo.beta", "0", "0"},
               {"run.steps", "5", ""},
               {"mesh.fsdp", "1", "1"}};
  ASSERT_EQ(stop_after("run", "1"), 75);
  settings_ = {{"optimizer.learning_rate", "0.002", "1e-06"},
               {"grpo.beta", "0.5", "0"},
               {"run.steps", "9", ""},
               {"run.threads", "3", "0"},
               {"mesh.fsdp", "2", "1"},
               {"head.new", "on", "off"},
               {"head.same", "off", "off"}};
  EXPECT_EQ(
      error_of(ErrorKind::kConfig, [&] { static_cast<void>(train_in("run")); }),
      checkpoint("run", "step_000001") +
          ": the run cannot go on with another configuration: optimizer.learning_rate is 0.002, and was "
          "0.001; grpo.beta is 0.5, and was 0; head.new is on, and was off | set these keys as they were, "
          "or start a new run in another run.dir");
}

TEST_F(ResumeTest, AnotherModelInTheSamePlaceIsRefused) {
  const std::string model = folder_ / "model";
  initialize_model(config_.model.path, model, 1, "f32");
  config_.model.path = model;
  ASSERT_EQ(stop_after("run", "1"), 75);
  const auto refusal = [&] {
    return error_of(ErrorKind::kConfig, [&] { static_cast<void>(train_in("run")); });
  };
  fs::remove_all(model);
  initialize_model(std::string(LATHE_GOLDENS) + "/qwen3_5_moe/model", model, 2, "f32");
  EXPECT_NE(refusal().find("model.path: is not the model that the run of '" +
                           checkpoint("run", "step_000001") + "' began with: its weights are other ones"),
            std::string::npos);
  fs::remove_all(model);
  initialize_model(std::string(LATHE_GOLDENS) + "/qwen3_5_moe/model", model, 1, "bf16");
  EXPECT_NE(refusal().find("its tensors have other names, shapes or types"), std::string::npos);
  fs::remove_all(model);
  initialize_model(std::string(LATHE_GOLDENS) + "/qwen3_5_moe/model", model, 1, "f32");
  Json config = Json::parse(bytes_of_file(model + "/config.json"));
  config["rms_norm_eps"] = 1e-3;
  std::ofstream(model + "/config.json") << config;
  EXPECT_NE(refusal().find("its config.json is another one"), std::string::npos);
}

// Never a silent start from the beginning.
TEST_F(ResumeTest, StateThatIsNotFiniteIsAnErrorWithARemedy) {
  ASSERT_EQ(stop_after("run", "2"), 75);
  const std::string file = checkpoint("run", "step_000002") + "/trainer/optimizer.safetensors";
  std::string bytes = bytes_of_file(file);
  bytes.replace(bytes.size() - 4, 4, 4, '\xff');
  std::ofstream(file, std::ios::binary) << bytes;
  const std::string text = error_of(ErrorKind::kModel, [&] { static_cast<void>(train_in("run")); });
  EXPECT_NE(text.find("holds values that are not finite"), std::string::npos) << text;
  EXPECT_NE(text.find("remove"), std::string::npos) << text;
}

TEST_F(ResumeTest, MomentsWithoutAnAppliedStepAreAnErrorWithARemedy) {
  ASSERT_EQ(stop_after("run", "2"), 75);
  const std::string file = checkpoint("run", "step_000002") + "/trainer/state.json";
  Json state = Json::parse(bytes_of_file(file));
  ASSERT_GT(state["applied_steps"], 0);
  state["applied_steps"] = 0;
  std::ofstream(file) << state;
  const std::string text = error_of(ErrorKind::kModel, [&] { static_cast<void>(train_in("run")); });
  EXPECT_NE(text.find("are not 0, expected 0"), std::string::npos) << text;
  EXPECT_NE(text.find("remove"), std::string::npos) << text;
}

TEST_F(ResumeTest, ACheckpointThatCannotBeReadIsAnErrorWithARemedy) {
  config_.run.save_every = 1;
  ASSERT_EQ(stop_after("run", "2:1"), 75);
  const std::string broken = checkpoint("run", "step_000002-mb0001");
  const auto refusal = [&] {
    return error_of(ErrorKind::kModel, [&] { static_cast<void>(train_in("run")); });
  };
  for (const char* name : {"trainer/state.json", "trainer/optimizer.safetensors",
                           "trainer/gradients.safetensors", "model.safetensors"}) {
    const std::string file = broken + "/" + name;
    const std::string whole = bytes_of_file(file);
    for (const size_t bytes : {size_t{0}, whole.size() / 2}) {
      std::ofstream(file, std::ios::binary) << whole.substr(0, bytes);
      const std::string text = refusal();
      EXPECT_NE(text.find(file), std::string::npos) << text;
      EXPECT_NE(text.find("remove"), std::string::npos) << text;
    }
    fs::remove(file);
    const std::string text = refusal();
    EXPECT_NE(text.find(broken), std::string::npos) << text;
    EXPECT_NE(text.find("remove"), std::string::npos) << text;
    std::ofstream(file, std::ios::binary) << whole;
  }
  std::string state = bytes_of_file(broken + "/trainer/state.json");
  state.replace(state.find("\"format\": 2"), 11, "\"format\": 1");
  std::ofstream(broken + "/trainer/state.json") << state;
  EXPECT_NE(refusal().find("has format 1; this version of lathe reads 2"), std::string::npos);
  fs::remove_all(broken);
  EXPECT_EQ(train_in("run"), 0);  // the remedy works
}

}  // namespace
}  // namespace lathe
