// Places, names and sizes of inputs that other trainers stumbled over.
#include <cstdlib>

#include "cli/field_run.h"

namespace lathe {
namespace {

class FieldInputs : public FieldRun {};

TEST_F(FieldInputs, KeysInTheWrongPlaceAreNamed) {
  const auto fault = [](const std::vector<std::string>& more) {
    const Finished done = train(more);
    EXPECT_EQ(done.code, 2) << done.err;
    return done.err;
  };
  EXPECT_EQ(
      fault({"--set", "optimizer.learning-rate=1"}),
      "error: --set optimizer.learning-rate=1: unknown option 'optimizer.learning-rate'\nhint: did you mean "
      "'optimizer.learning_rate'?\n");
  EXPECT_NE(fault({"--set", "run..steps=1"})
                .find("error: --set run..steps=1: unknown option 'run..steps'\nhint: did"),
            std::string::npos);
  EXPECT_NE(fault({"--set", "run.num_epoch=1"}).find("unknown option 'run.num_epoch'\nhint: "),
            std::string::npos);
  EXPECT_NE(fault({"--set", "run.save_every=-1"}).find("run.save_every must be an integer in [0, "),
            std::string::npos);
  EXPECT_NE(fault({"--set", "run.save_every=null"}).find("run.save_every must be an integer in [0, "),
            std::string::npos);
  file("run.yaml", bytes("run.yaml") + "learning-rate: 1\n");
  EXPECT_NE(fault({}).find("unknown section 'learning-rate'\nhint: "), std::string::npos);
}

TEST_F(FieldInputs, PathsWithSpacesAndLettersOfOtherAlphabets) {
  const std::string folder = "my files/\xC3\xA4\xE6\xA8\xA1\xE5\x9E\x8B";
  std::filesystem::create_directories(folder);
  for (const char* name : {"model", "rollouts.jsonl", "run.yaml"}) {
    std::filesystem::rename(name, folder + "/" + name);
  }
  const Finished done = run_lathe({"train", folder + "/run.yaml"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(std::filesystem::exists(folder + "/run/checkpoints/step_000001/COMPLETE"));
  EXPECT_EQ(run_lathe({"score", "--model", folder + "/run/checkpoints/step_000001", "--rollouts",
                       folder + "/rollouts.jsonl", "--out", folder + "/out put.jsonl"})
                .code,
            0);
  EXPECT_TRUE(std::filesystem::exists(folder + "/out put.jsonl"));
  EXPECT_EQ(run_lathe({"train", folder + "/run/config.resolved.yaml", "--set", "run.dir=again"}).code, 0);
}

TEST_F(FieldInputs, TheWorkingFolderMayBeReadOnly) {
  const std::string here = std::filesystem::current_path().string();
  std::filesystem::current_path("/proc");  // where not even root writes
  const Finished done = run_lathe({"train", here + "/run.yaml"});
  std::filesystem::current_path(here);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(std::filesystem::exists("run/checkpoints/step_000001/COMPLETE"));
}

TEST_F(FieldInputs, ALocaleWithDecimalCommasChangesNothing) {
  ASSERT_EQ(train({"--set", "run.dir=plain"}).code, 0);
  const Finished done = run_lathe({"train", "run.yaml", "--set", "run.threads=1"},
                                  {"LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8", "LC_NUMERIC=de_DE.UTF-8"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(bytes("run/checkpoints/step_000001/model.safetensors") ==
              bytes("plain/checkpoints/step_000001/model.safetensors"));
  EXPECT_NO_THROW(static_cast<void>(read_lines("run/metrics.jsonl")));
}

TEST_F(FieldInputs, TenThousandSamplesOfOneToken) {
  std::vector<Json> lines;
  for (unsigned i = 0; i < 10000; ++i)
    lines.push_back(line(ids(1, i), ids(1, i + 7), {{"reward", i % 2}, {"group_id", i / 4}}));
  const auto metrics =
      run(lines, {"data.row_length=2048", "data.segment_alignment=1", "data.max_segments=1024"});
  EXPECT_EQ(metrics[0].at("data/scored_tokens"), 10000);
  EXPECT_EQ(metrics[0].at("group/count"), 2500);
}

TEST_F(FieldInputs, APromptLongerThanTheRowIsNamed) {
  write_lines("rollouts.jsonl", {line(ids(300, 1), ids(1, 2), {{"reward", 1}})});
  const Finished done = train();
  EXPECT_EQ(done.code, 3);
  EXPECT_NE(done.err.find(
                "rollouts.jsonl:1: trajectory of 301 tokens (prompt 300 + completion 1), expected at most "
                "data.row_length = 256"),
            std::string::npos)
      << done.err;
}

TEST_F(FieldInputs, TextBesideTheIdsIsDecoration) {
  const Json plain = line(ids(4, 1), ids(9, 2));
  Json told = plain;
  told["prompt"] = "something else";
  told["completion"] = "entirely";
  const auto both = scores({plain, told});
  EXPECT_EQ(both[0].at("logprobs"), both[1].at("logprobs"));
  EXPECT_EQ(both[1].at("prompt"), "something else");
}

// No Python at run time.
TEST_F(FieldInputs, TheBinaryLinksNoInterpreter) {
  const int found =
      std::system((std::string("ldd '") + LATHE_BINARY + "' > libraries.txt 2>/dev/null").c_str());
  if (found != 0) GTEST_SKIP() << "no ldd here";
  EXPECT_NE(bytes("libraries.txt").find("libc"), std::string::npos);
  EXPECT_EQ(bytes("libraries.txt").find("python"), std::string::npos);
}

}  // namespace
}  // namespace lathe
