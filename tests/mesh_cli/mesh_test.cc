// Runs of many ranks: checkpoints, scores, and how they end.
#include <cmath>
#include <csignal>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "lathe/core/cpu.h"
#include "lathe/io/safetensors.h"

#include "cli/golden_run.h"

namespace lathe {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

using Mesh = std::map<std::string, int>;
const Mesh kOne;
const Mesh kFsdpContext{{"fsdp", 2}, {"context", 2}};

class MeshRuns : public GoldenRun {
 protected:
  void SetUp() override {
    GoldenRun::SetUp();
    copy("qwen3_5");
    file("run.yaml",
         "model: {path: model, compute_dtype: f32}\n"
         "data: {rollouts: rollouts.jsonl, row_length: 256, rows_per_micro_batch: 2}\n"
         "optimizer: {learning_rate: 1.0e-3}\n"
         "run: {dir: run, steps: 4, threads: 1}\n");
    // Tells its process number; a file that is too long for it is an error, not a signal.
    file("rank.sh", "trap '' XFSZ\necho $$ >pid.$OMPI_COMM_WORLD_RANK\nexec \"$@\"\n");
  }

  static std::vector<std::string> command(const Mesh& mesh, std::vector<std::string> arguments,
                                          const std::vector<std::string>& settings = {}) {
    int ranks = 1;
    for (const auto& [axis, size] : mesh) {
      ranks *= size;
      arguments.insert(arguments.end(), {"--set", "mesh." + axis + "=" + std::to_string(size)});
    }
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    arguments.insert(arguments.begin(), {std::to_string(ranks), "sh", "rank.sh", LATHE_PROGRAM});
    return arguments;
  }
  static std::vector<std::string> train(const Mesh& mesh, const std::string& dir,
                                        std::vector<std::string> settings = {},
                                        const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"train", "run.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    settings.push_back("run.dir=" + dir);
    return command(mesh, arguments, settings);
  }

  static std::vector<json> lines_of(const std::string& path) {
    std::vector<json> lines;
    std::ifstream text(path);
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line, nullptr, false));
    return lines;
  }
  static bool has_steps(size_t steps) { return lines_of("run/metrics.jsonl").size() >= steps; }
  static int process_of(int rank) {
    int id = 0;
    std::ifstream("pid." + std::to_string(rank)) >> id;
    EXPECT_GT(id, 0);
    return id;
  }

  // From now on that rank cannot write files of a checkpoint.
  static void limit_files_of(int rank) {
    const rlimit small{200000, 200000};
    ASSERT_EQ(prlimit(process_of(rank), RLIMIT_FSIZE, &small, nullptr), 0);
  }
  // An error of the documented kind, told once, and nobody ended by force.
  static void expect_failed_save(const Finished& done, int rank) {
    EXPECT_EQ(done.code, 2) << done.err;
    const std::string error = rank == 0 ? "error: " : fmt::format("error: rank {}: ", rank);
    const size_t at = done.err.find(error);
    ASSERT_NE(at, std::string::npos) << done.err;
    EXPECT_NE(done.err.find("File too large", at), std::string::npos) << done.err;
    EXPECT_EQ(done.err.find("error: ", at + 1), std::string::npos) << done.err;
    EXPECT_EQ(done.err.find("MPI_ABORT"), std::string::npos) << done.err;
  }

  static void expect_same_bits(const std::string& a, const std::string& b) {
    for (const char* name : {"/model.safetensors", "/trainer/optimizer.safetensors"}) {
      const std::string expected = bytes(a + name);
      EXPECT_FALSE(expected.empty()) << a << name;
      EXPECT_TRUE(expected == bytes(b + name)) << b << name;
    }
  }
  static void expect_near(const std::string& a, const std::string& b) {
    for (const char* name : {"/model.safetensors", "/trainer/optimizer.safetensors"}) {
      const SafetensorsFile expected(a + name);
      const SafetensorsFile got(b + name);
      ASSERT_EQ(expected.names_in_file_order(), got.names_in_file_order());
      for (const auto& [tensor, info] : expected.tensors()) {
        const auto* x = reinterpret_cast<const float*>(expected.bytes(info));
        const auto* y = reinterpret_cast<const float*>(got.bytes(got.tensors().at(tensor)));
        double gap = 0;
        double norm = 0;
        for (int64_t i = 0; i < info.elements(); ++i) {
          gap += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
          norm += std::pow(static_cast<double>(x[i]), 2);
        }
        EXPECT_LE(std::sqrt(gap), 1e-3 * std::sqrt(norm) + 1e-12) << b << name << " " << tensor;
      }
    }
  }
  // pack/computed_fill is of rows that are filled up for the ranks.
  static void expect_metrics_near(const std::string& a, const std::string& b) {
    const std::vector<json> expected = lines_of(a + "/metrics.jsonl");
    const std::vector<json> got = lines_of(b + "/metrics.jsonl");
    ASSERT_EQ(expected.size(), got.size());
    for (size_t step = 0; step < got.size(); ++step) {
      for (const auto& [key, value] : expected[step].items()) {
        ASSERT_TRUE(got[step].contains(key)) << key;
        const bool varies =
            key.starts_with("time") || key.starts_with("perf/") || key == "pack/computed_fill";
        if (varies || !value.is_number()) continue;
        const auto want = value.get<double>();
        EXPECT_NEAR(got[step][key].get<double>(), want, 1e-3 * std::abs(want) + 1e-5) << key;
      }
    }
  }
};

// In the middle of the second step of a batch whose log-probs are computed by the ranks, of which some have none.
TEST_F(MeshRuns, ACheckpointGoesOnWithTheSameBitsAndOnAnotherMesh) {
  std::string stripped;
  for (json line : lines_of("rollouts.jsonl")) {
    line.erase("old_logprobs");
    line.erase("ref_logprobs");
    stripped += line.dump() + "\n";
  }
  file("rollouts.jsonl", stripped);
  const std::vector<std::string> settings{"grpo.num_iterations=2", "grpo.beta=0.1", "grpo.reference=initial"};
  const std::string last = "/checkpoints/step_000004";
  for (const auto& [mesh, dir] : {std::pair(kOne, "one"), std::pair(kFsdpContext, "straight")}) {
    const Finished done = run_lathe(train(mesh, dir, settings));
    ASSERT_EQ(done.code, 0) << done.err;
  }
  expect_near("one" + last, "straight" + last);
  expect_metrics_near("one", "straight");
  const Finished stopped = run_lathe(train(kFsdpContext, "stopped", settings, {"--stop-after", "3:1"}));
  ASSERT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_EQ(stopped.out,
            "checkpoint: " + fs::absolute("stopped/checkpoints/step_000003-mb0001").string() + "\n");
  for (const auto& [mesh, dir] : {std::pair(kFsdpContext, "stopped"), std::pair(kOne, "alone")}) {
    if (!fs::exists(dir)) fs::copy("kept", dir, fs::copy_options::recursive);
    if (mesh == kFsdpContext) fs::copy(dir, "kept", fs::copy_options::recursive);
    const Finished done = run_lathe(train(mesh, dir, settings));
    ASSERT_EQ(done.code, 0) << done.err;
  }
  expect_same_bits("straight" + last, "stopped" + last);
  expect_near("straight" + last, "alone" + last);
}

TEST_F(MeshRuns, ScoresLikeOneRank) {
  for (const auto& [mesh, out] :
       {std::pair(kOne, "one.jsonl"), std::pair(Mesh{{"data", 2}, {"context", 2}}, "many.jsonl")}) {
    const Finished done =
        run_lathe(command(mesh, {"score", "--model", "model", "--rollouts", "rollouts.jsonl", "--out", out}));
    ASSERT_EQ(done.code, 0) << done.err;
  }
  const std::vector<json> one = lines_of("one.jsonl");
  const std::vector<json> many = lines_of("many.jsonl");
  ASSERT_EQ(one.size(), many.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i]["completion_ids"], many[i]["completion_ids"]);
    for (const char* key : {"logprobs", "entropy"}) {
      ASSERT_EQ(one[i][key].size(), many[i][key].size());
      for (size_t t = 0; t < one[i][key].size(); ++t) {
        if (!one[i][key][t].is_number()) continue;
        EXPECT_NEAR(one[i][key][t].get<double>(), many[i][key][t].get<double>(), 2e-2);
      }
    }
  }
}

// Real progress: a transfer that begins before products is over, or nearly so, when they are.
TEST_F(MeshRuns, TransfersGoOnWhileRanksCompute) {
  const Finished done = run_lathe({"2", LATHE_PROGRAM, "bench", "exchange", "--threads", "1", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const json report = json::parse(done.out);
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_EQ(report.at("verified"), true);
  for (const json& one : report.at("exchanges"))
    EXPECT_GT(one.at("progress_share").get<double>(), 0.5) << one.dump();
}

TEST_F(MeshRuns, ASignalToOneRankSavesOnAll) {
  RunningLathe lathe(train(kFsdpContext, "run", {"run.steps=100000"}));
  ASSERT_TRUE(lathe.wait_until([] { return has_steps(2); }));
  ASSERT_EQ(kill(process_of(1), SIGTERM), 0);
  const Finished done = lathe.finish();
  EXPECT_EQ(done.code, 75) << done.err;
  EXPECT_NE(done.err.find("stopped by SIGTERM to rank 1 after step"), std::string::npos) << done.err;
  EXPECT_NE(done.out.find("checkpoint: " + fs::absolute("run/checkpoints/step_").string()),
            std::string::npos);
}

TEST_F(MeshRuns, ASignalToTheLauncherSavesOnAll) {
  for (const int number : {SIGTERM, SIGINT}) {
    const std::string dir = "run" + std::to_string(number);
    RunningLathe lathe(train({{"fsdp", 2}}, dir, {"run.steps=100000"}));
    ASSERT_TRUE(lathe.wait_until([&] { return lines_of(dir + "/metrics.jsonl").size() >= 2; }));
    lathe.signal(number);
    const Finished done = lathe.finish();
    EXPECT_EQ(done.code, 75) << done.err;
    EXPECT_NE(done.err.find("stopped by SIGUSR1"), std::string::npos) << done.err;
    EXPECT_NE(done.out.find("checkpoint: "), std::string::npos) << done.err;
  }
}

TEST_F(MeshRuns, ASignalIsHeardWhileTheLeadingRankWaitsForAFile) {
  fs::create_directories("batches");
  fs::copy("rollouts.jsonl", "batches/a.jsonl");
  RunningLathe lathe(
      train({{"data", 2}}, "run", {"run.steps=100000", "data.rollouts=batches/*.jsonl", "data.wait_s=60"}));
  ASSERT_TRUE(lathe.wait_until([] { return has_steps(1); }));
  ASSERT_EQ(kill(process_of(1), SIGTERM), 0);
  const time_t start = time(nullptr);
  const Finished done = lathe.finish();
  EXPECT_LE(time(nullptr) - start, 5);
  EXPECT_EQ(done.code, 75) << done.err;
  EXPECT_TRUE(fs::exists("run/checkpoints/step_000001/COMPLETE"));
}

TEST_F(MeshRuns, AMeshThatDoesNotFitIsToldOnce) {
  for (const std::string axis : {"-1", "0", "3"}) {
    std::vector<std::string> command = train({{"fsdp", 2}}, "run");
    command.insert(command.end(), {"--set", "mesh.context=-1", "--set", "mesh.fsdp=" + axis});
    const Finished done = run_lathe(command);
    EXPECT_EQ(done.code, 2) << done.err;
    const size_t error =
        done.err.find("error: --set: mesh (data 1, fsdp " + axis + ", context -1, expert 1): ");
    ASSERT_NE(error, std::string::npos) << done.err;
    EXPECT_NE(done.err.find("\nhint: ", error), std::string::npos) << done.err;
    EXPECT_EQ(done.err.find("error: ", error + 1), std::string::npos) << done.err;
    EXPECT_FALSE(fs::exists("run"));
  }
}

TEST_F(MeshRuns, AKilledRankEndsTheJobAndItGoesOn) {
  RunningLathe lathe(train(kFsdpContext, "run", {"run.steps=100000", "run.save_every=2"}));
  ASSERT_TRUE(lathe.wait_until([] { return fs::exists("run/checkpoints/latest"); }));
  ASSERT_EQ(kill(process_of(2), SIGKILL), 0);
  const time_t start = time(nullptr);
  EXPECT_EQ(lathe.finish().code, 137);
  EXPECT_LE(time(nullptr) - start, 5);
  const Finished done = run_lathe(train(kFsdpContext, "run", {"run.steps=100000"}, {"--stop-after", "40"}));
  EXPECT_EQ(done.code, 75) << done.err;
  EXPECT_NE(done.err.find("going on from "), std::string::npos) << done.err;
}

TEST_F(MeshRuns, ABadFileKeepsTheStepsBeforeIt) {
  fs::create_directories("batches");
  fs::copy("rollouts.jsonl", "batches/a.jsonl");
  file("batches/b.jsonl", "{}\n");
  const Finished done = run_lathe(train(kFsdpContext, "run", {"data.rollouts=batches/*.jsonl"}));
  EXPECT_EQ(done.code, 3) << done.err;
  const size_t error = done.err.find("error: ");
  ASSERT_NE(error, std::string::npos) << done.err;
  EXPECT_EQ(done.err.find("error: ", error + 1), std::string::npos) << done.err;
  EXPECT_TRUE(fs::exists("run/checkpoints/step_000001/COMPLETE"));
}

// Beside the steps that follow: they must not wait for the end of that save. All ranks end in order, and what was saved
// before is there.
TEST_F(MeshRuns, ASaveThatFailsOnOneRankIsAnErrorOfAll) {
  RunningLathe lathe(train(kFsdpContext, "run", {"run.steps=100000", "run.save_every=15"}));
  ASSERT_TRUE(lathe.wait_until([] { return fs::exists("run/checkpoints/latest"); }));
  limit_files_of(1);
  expect_failed_save(lathe.finish(), 1);
  const std::string latest = bytes("run/checkpoints/latest").substr(0, std::string("step_000015").size());
  EXPECT_TRUE(fs::exists("run/checkpoints/" + latest + "/COMPLETE"));
  const int steps = std::stoi(latest.substr(std::string("step_").size()));
  const Finished done = run_lathe(train(kFsdpContext, "run", {"run.steps=" + std::to_string(steps + 1)}));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.err.find("going on from "), std::string::npos) << done.err;
}

TEST_F(MeshRuns, SoIsOneInTheMiddleOfAStepAndTheLastOne) {
  for (const auto& [stop, rank] : {std::pair("9:1", 1), std::pair("9", 0)}) {
    const std::string dir = fmt::format("run_{}", rank);
    RunningLathe lathe(train({{"fsdp", 2}}, dir, {"run.steps=100000"}, {"--stop-after", stop}));
    ASSERT_TRUE(lathe.wait_until([&] { return fs::exists(dir + "/metrics.jsonl"); }));
    limit_files_of(rank);
    expect_failed_save(lathe.finish(), rank);
    EXPECT_FALSE(fs::exists(dir + "/checkpoints/latest"));
  }
}

// The others hear who failed and why, before they are ended.
TEST_F(MeshRuns, ARankThatCannotReadIsNamedInTheLog) {
  fs::create_directories("batches");
  for (const char* name : {"batches/a.jsonl", "batches/b.jsonl"}) fs::copy("rollouts.jsonl", name);
  RunningLathe lathe(train(kFsdpContext, "run", {"run.steps=100000", "data.rollouts=batches/*.jsonl"}));
  ASSERT_TRUE(lathe.wait_until([] { return has_steps(2); }));
  const rlimit none{3, 3};
  ASSERT_EQ(prlimit(process_of(2), RLIMIT_NOFILE, &none, nullptr), 0);
  const time_t start = time(nullptr);
  const Finished done = lathe.finish();
  EXPECT_LE(time(nullptr) - start, 5);
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_NE(done.err.find("error: rank 2: "), std::string::npos) << done.err;
  const std::string log = bytes("run/log.txt");
  EXPECT_NE(log.find("the next batch cannot be used, the steps before it are saved: rank 2: "),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("cannot be opened: Too many open files"), std::string::npos) << log;
}

// The path is the same, the folder is not.
TEST_F(MeshRuns, AFolderThatIsNotSharedIsRefusedBeforeTheFirstStep) {
  const std::string here = fs::current_path();
  fs::create_directories("elsewhere/run");
  fs::copy_file("run.yaml", "elsewhere/run.yaml");
  file("rank.sh", "[ $OMPI_COMM_WORLD_RANK = 0 ] || cd elsewhere\nexec \"$@\"\n");
  const Finished done =
      run_lathe(train({{"fsdp", 2}}, "/proc/self/cwd/run",
                      {"model.path=" + here + "/model", "data.rollouts=" + here + "/rollouts.jsonl"}));
  EXPECT_EQ(done.code, 2) << done.err;
  EXPECT_NE(done.err.find("error: run.dir: '/proc/self/cwd/run' on rank 1 is not the folder of rank 0"),
            std::string::npos)
      << done.err;
  EXPECT_EQ(bytes("run/metrics.jsonl"), "");
}

// Before there is a run: the others hear the reason all the same.
TEST_F(MeshRuns, ARankThatCannotOpenTheModelIsHeard) {
  const std::string here = fs::current_path();
  fs::create_directories("elsewhere");
  fs::copy("model", "elsewhere/model", fs::copy_options::recursive);
  fs::resize_file("elsewhere/model/model.safetensors", 0);
  fs::copy_file("run.yaml", "elsewhere/run.yaml");
  file("rank.sh", "[ $OMPI_COMM_WORLD_RANK = 0 ] || cd elsewhere\nexec \"$@\"\n");
  const Finished done =
      run_lathe(train({{"fsdp", 2}}, here + "/run",
                      {"model.path=/proc/self/cwd/model", "data.rollouts=" + here + "/rollouts.jsonl"}));
  EXPECT_EQ(done.code, 4) << done.err;
  EXPECT_NE(done.err.find("rank 1 failed: /proc/self/cwd/model/model.safetensors: "), std::string::npos)
      << done.err;
}

// One rank is told to use less than the processor has: all do, and compute what they would with that on all.
TEST_F(MeshRuns, AllRanksUseTheLeastInstructionSet) {
  if (cpu_info().best == Isa::kAvx2) GTEST_SKIP() << "there is one instruction set here";
  const auto ranks_with = [](const std::string& condition, const std::string& dir, const std::string& sets) {
    file("rank.sh", "if " + condition + "; then export LATHE_ISA=avx2; " + sets + "fi\nexec \"$@\"\n");
    return run_lathe(train({{"fsdp", 2}}, dir, {"model.compute_dtype=auto"}));
  };
  const std::string on_one = "[ $OMPI_COMM_WORLD_RANK = 1 ]";
  const Finished one = ranks_with(on_one, "one", "");
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_NE(one.err.find("isa: avx2: all that rank 1 has"), std::string::npos) << one.err;
  EXPECT_NE(one.err.find("model.compute_dtype: f32: no native bf16"), std::string::npos) << one.err;
  ASSERT_EQ(ranks_with("true", "all", "").code, 0);
  expect_same_bits("all/checkpoints/step_000004", "one/checkpoints/step_000004");
  const std::string other = std::string("else export LATHE_ISA=") + isa_name(Isa::kAvx512) + "; ";
  const Finished refused = ranks_with(on_one, "refused", other);
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_NE(refused.err.find("error: LATHE_ISA: rank 0 is to use avx512, and rank 1 uses avx2"),
            std::string::npos)
      << refused.err;
}

// The same path, other contents: every process sees its own working directory under it.
TEST_F(MeshRuns, RanksThatSeeOtherRolloutsAreRefused) {
  std::string reversed;
  std::ifstream in("rollouts.jsonl");
  for (std::string line; std::getline(in, line);) reversed.insert(0, line + "\n");
  for (const char* rank : {"0", "1"}) {
    fs::create_directories(rank);
    fs::copy("rollouts.jsonl", std::string(rank) + "/r.jsonl");
  }
  file("1/r.jsonl", reversed);
  file("rank.sh", "cd $OMPI_COMM_WORLD_RANK\nexec \"$@\"\n");
  const Finished done = run_lathe(command({{"data", 2}}, {"train", fs::absolute("run.yaml").string()},
                                          {"data.rollouts=/proc/self/cwd/r.jsonl"}));
  EXPECT_EQ(done.code, 3) << done.err;
  const std::string error = "error: /proc/self/cwd/r.jsonl: rank 1 reads other contents there than rank 0\n";
  const size_t at = done.err.find(error);
  ASSERT_NE(at, std::string::npos) << done.err;
  EXPECT_EQ(done.err.find("error: ", at + 1), std::string::npos) << done.err;
}

}  // namespace
}  // namespace lathe
