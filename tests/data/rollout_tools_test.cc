// The files of a run, the lines that scoring writes, and the report of a file.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/data/base64.h"
#include "lathe/data/inspect.h"

#include "data/rollout_file.h"

namespace lathe {
namespace {

using Names = std::vector<std::string>;

TEST(RolloutFiles, FolderIsTakenInTheOrderOfItsSteps) {
  const TestFolder folder;
  for (const char* name : {"step_10.jsonl", "step_2.jsonl.gz", "step_1.jsonl", "notes.jsonl", "step_3.txt"}) {
    folder.write(name, "x");
  }
  EXPECT_EQ(
      rollout_files(folder.path("")),
      (Names{folder.path("step_1.jsonl"), folder.path("step_2.jsonl.gz"), folder.path("step_10.jsonl")}));
  EXPECT_EQ(rollout_files(folder.path("step_*.jsonl")),
            (Names{folder.path("step_1.jsonl"), folder.path("step_10.jsonl")}));
  EXPECT_EQ(rollout_files(folder.path("notes.jsonl")), Names{folder.path("notes.jsonl")});
  folder.write("step_1.jsonl.gz", "x");
  EXPECT_THROW(static_cast<void>(rollout_files(folder.path(""))), Error);
}

TEST(RolloutFiles, NothingFoundIsADataError) {
  const TestFolder folder;
  for (const auto& pattern : {folder.path(""), folder.path("none.jsonl"), folder.path("*.jsonl")}) {
    try {
      static_cast<void>(rollout_files(pattern));
      FAIL() << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_EQ(std::string(error.what()).rfind(pattern, 0), 0U);
    }
  }
}

TEST(ScoredLine, AddsBothListsAndKeepsTheRest) {
  const std::string text = R"({"prompt_ids": [1], "metadata": {"logprobs": "kept, }"}, "reward": 1e-3})";
  EXPECT_EQ(
      scored_line(text, {-0.5F, -1e-8F}, {1.0F, 0.1F}),
      R"({"prompt_ids": [1], "metadata": {"logprobs": "kept, }"}, "reward": 1e-3, "logprobs": [-0.5, -1e-08], "entropy": [1, 0.1]})");
}

TEST(ScoredLine, ReplacesWhatWasThere) {
  EXPECT_EQ(scored_line(R"( { "logprobs":[1,[2]] ,"a\"b" : "}" , "entropy" : null } )", {-1.0F}, {2.0F}),
            R"({"a\"b" : "}", "logprobs": [-1], "entropy": [2]})");
  EXPECT_EQ(scored_line(R"({"log\u0070robs": 3, "entropy": 1})", {-1.0F}, {2.0F}),
            R"({"logprobs": [-1], "entropy": [2]})");
  EXPECT_EQ(scored_line(R"({"env": "a\", }", "entropy": [1]})", {-1.0F}, {2.0F}),
            R"({"env": "a\", }", "logprobs": [-1], "entropy": [2]})");
  EXPECT_EQ(scored_line("{}", {}, {}), R"({"logprobs": [], "entropy": []})");
}

TEST(ScoredLine, TheSamplersLogprobsStayUnderTheirOwnName) {
  const std::string once =
      scored_line(R"({"logprobs" : [-3, null] , "reward": 1})", {-1.0F, -2.0F}, {2.0F, 1.0F});
  EXPECT_EQ(once,
            R"({"rollout_logprobs" : [-3, null], "reward": 1, "logprobs": [-1, -2], "entropy": [2, 1]})");
  EXPECT_EQ(scored_line(once, {-4.0F, -5.0F}, {0.0F, 1.0F}),
            R"({"rollout_logprobs" : [-3, null], "reward": 1, "logprobs": [-4, -5], "entropy": [0, 1]})");
}

TEST(ScoredLine, NumbersReadBackExactlyAndNonFiniteIsNull) {
  const std::vector<float> values = {-0.1F, -123.456F, std::nextafter(-1.0F, 0.0F), 1e-45F, -3.4028235e38F};
  const auto json = nlohmann::json::parse(scored_line(R"({"a": 1})", values, {NAN, INFINITY, -INFINITY}));
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(json["logprobs"][i].get<float>(), values[i]);
  EXPECT_EQ(json["entropy"].dump(), "[null,null,null]");
}

TEST(ScoredLine, GoldenRolloutsStayTheSameTrajectories) {
  const std::string path = std::string(LATHE_GOLDENS) + "/loss_gates/rollouts.jsonl";
  RolloutOptions options;
  options.keep_text = true;
  const auto file = read_rollouts(path, options);
  ASSERT_EQ(file.trajectories.size(), 12U);
  ASSERT_EQ(file.lines.size(), 12U);
  EXPECT_TRUE(file.warnings.empty());
  std::string scored;
  for (size_t i = 0; i < file.lines.size(); ++i) {
    const std::vector<float> values(file.trajectories[i].completion_ids.size(), -1.0F);
    scored += scored_line(file.lines[i].text, values, values) + "\n";
  }
  const auto again = read_text(scored, options);
  ASSERT_EQ(again.trajectories.size(), 12U);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(again.trajectories[i].completion_ids, file.trajectories[i].completion_ids);
    EXPECT_EQ(again.trajectories[i].old_logprobs, file.trajectories[i].old_logprobs);
    EXPECT_EQ(again.trajectories[i].group, file.trajectories[i].group);
  }
}

TEST(Inspect, CountsAndCollectsEveryProblem) {
  const TestFolder folder;
  const std::string path = folder.write(
      "r.jsonl",
      R"({"prompt_ids": [1], "completion_ids": [2, 3], "completion_mask": [0, 1], "reward": 1, "env": "a"})"
      "\n[1, 2]\n"
      R"({"prompt_ids": [1], "completion_ids": [2, 3, 4], "reward": 3, "status": "truncated"})"
      "\n"
      R"({"prompt_ids": [7], "completion_ids": [2], "reward": NaN})"
      "\n");
  const RolloutReport report = inspect_rollouts(path);
  EXPECT_EQ(report.trajectories, 2);
  EXPECT_EQ(report.groups, 1);
  EXPECT_EQ(report.tokens, 7);
  EXPECT_EQ(report.scored_tokens, 4);
  EXPECT_EQ(report.lengths.min, 3);
  EXPECT_EQ(report.lengths.mean, 3.5);
  EXPECT_EQ(report.lengths.max, 4);
  EXPECT_EQ(report.reward.mean, 2);
  EXPECT_NEAR(report.reward.std, std::sqrt(2.0), 1e-12);
  EXPECT_EQ(report.status.at("truncated"), 1);
  EXPECT_EQ(report.env.at("a"), 1);
  ASSERT_EQ(report.problems.size(), 2U);
  EXPECT_EQ(report.problems[0], path + ":2: an array of 2, expected one object a line");
  EXPECT_EQ(report.problems[1], path + ":4: reward: NaN, expected a finite number, or an object of them");
  EXPECT_EQ(inspect_rollouts(folder.write("empty.jsonl", "")).problems.size(), 1U);
  int lines = 0;
  static_cast<void>(inspect_rollouts(folder.write("three.jsonl", "\n{}\n\n"), 0, [&lines] { ++lines; }));
  EXPECT_EQ(lines, 3);
}

TEST(Base64, DecodesStrictly) {
  const auto text = [](std::string_view encoded) {
    const auto bytes = decode_base64(encoded);
    return bytes ? std::string(bytes->begin(), bytes->end()) : std::string("refused");
  };
  EXPECT_EQ(text(""), "");
  EXPECT_EQ(text("TQ=="), "M");
  EXPECT_EQ(text("TWE="), "Ma");
  EXPECT_EQ(text("TWFu"), "Man");
  EXPECT_EQ(text("TWE"), "Ma");
  for (const char* bad : {"T", "TW=u", "TW E=", "T===", "TR==", "TWE=\n", "-_=="})
    EXPECT_EQ(text(bad), "refused") << bad;
}

}  // namespace
}  // namespace lathe
