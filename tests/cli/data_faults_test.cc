// Rollouts that cannot be used: exit code 3, with file, line, key, value, expectation and a hint, and no run folder.
#include "cli/golden_run.h"

namespace lathe {
namespace {

class DataFaults : public GoldenRun {
 protected:
  static std::string line(const std::string& members) {
    return R"({"prompt_ids": [1, 2], "completion_ids": [3, 4, 5])" + (members.empty() ? "" : ", " + members) +
           "}\n";
  }
  // The second line is at fault.
  static void expect_fault(const std::string& text, const std::string& error,
                           const std::vector<std::string>& more = {}) {
    file("rollouts.jsonl", line("\"reward\": 1") + text);
    const Finished done = train(more);
    const std::string path = (std::filesystem::current_path() / "rollouts.jsonl").string();
    expect_refused(done, 3, "error: " + path + ":" + error);
    EXPECT_NE(done.err.find("\nhint: "), std::string::npos) << done.err;
  }
};

TEST_F(DataFaults, BadLinesAreNamedAndNothingIsTrained) {
  const std::string id = ", expected an integer in [0, 97)\n";
  const auto ids = [](const std::string& completion) {
    return R"({"prompt_ids": [1], "completion_ids": [)" + completion +
           R"(], "reward": 0})"
           "\n";
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {ids("3, 97"), "2: completion_ids[1]: 97" + id},
      {ids("-1"), "2: completion_ids[0]: -1" + id},
      {ids("2147483648"), "2: completion_ids[0]: 2147483648" + id},
      {ids("1.5"), "2: completion_ids[0]: 1.5" + id},
      {ids("\"7\""), "2: completion_ids[0]: \"7\"" + id},
      {ids(""), "2: completion_ids: empty, expected at least one token id\n"},
      {line("\"reward\": NaN"), "2: reward: NaN, expected a finite number, or an object of them\n"},
      {line("\"reward\": Infinity"), "2: reward: Infinity, expected a finite number, or an object of them\n"},
      {line("\"reward\": 1e39"), "2: reward: 1e+39, expected a finite number, or an object of them\n"},
      {line("\"reward\": null"),
       "2: reward: null, expected a finite number, an object of them, or an advantage"},
      {line(""),
       "2: reward: missing, expected a finite number, an object of them, or an advantage instead\n"},
      {line("\"reward\": 1, \"temperature\": 0"), "2: temperature: 0, expected a finite number >= 1e-05\n"},
      {line("\"reward\": 1, \"temperature\": -1"), "2: temperature: -1, expected a finite number >= 1e-05\n"},
      {line("\"reward\": 1, \"rollout_logprobs\": [-1, -1]"),
       "2: rollout_logprobs: 2 values, expected 3, one for each completion token\n"},
      {line("\"reward\": 1, \"completion_mask\": [1]"),
       "2: completion_mask: 1 values, expected 3, one for each completion token\n"},
      {line("\"reward\": 1, \"score\": 1"), "2: score: names the same as reward, which is given too"},
      {"[1, 2]\n", "2: an array of 2, expected one object a line\n"},
      {"{\"prompt_ids\": [1", "2: not JSON at byte "},
      {"\n\n{}\n", "4: prompt_ids: missing, expected an array of token ids\n"},
  };
  for (const auto& [text, error] : cases) expect_fault(text, error);
}

TEST_F(DataFaults, TrajectoriesThatTheConfigurationCannotTake) {
  const std::vector<std::string> rows{"--set", "data.row_length=64"};
  std::string ids = "1";
  for (int i = 1; i < 63; ++i) ids += ", 1";
  const std::string longer = R"({"prompt_ids": [1, 2], "completion_ids": [)" + ids +
                             R"(], "reward": 0, "group_id": 1})"
                             "\n";
  expect_fault(
      longer,
      "2: trajectory of 65 tokens (prompt 2 + completion 63), expected at most data.row_length = 64; 1 of 2 "
      "are too long, the longest has 65\nhint: set data.row_length to at least 65, or leave these lines "
      "out\n",
      rows);
  const std::string no_logprobs = "1: rollout_logprobs: missing, but ";
  expect_fault("", no_logprobs + "grpo.seq_logprob_error_threshold needs them\n",
               {"--set", "grpo.seq_logprob_error_threshold=2"});
  expect_fault("", no_logprobs + "grpo.use_rollout_logps needs them\n",
               {"--set", "grpo.use_rollout_logps=true"});
  expect_fault("", no_logprobs + "grpo.sampler_is: token needs them\n",
               {"--set", "grpo.sampler_is=token", "--set", "grpo.sampler_is_threshold=2"});
  expect_fault(line("\"reward\": 1, \"old_logprobs\": [-1, -1, -1]"),
               "1: old_logprobs: missing here and in 1 trajectories of the step altogether, but line 2 has "
               "it; expected "
               "all or none\n");
}

TEST_F(DataFaults, FilesWithoutATrajectory) {
  const std::string here = std::filesystem::current_path().string();
  const auto expect = [&](const std::string& error, const std::vector<std::string>& more = {}) {
    expect_refused(train(more), 3, "error: " + here + error);
  };
  file("rollouts.jsonl", "\n \n");
  expect("/rollouts.jsonl: no trajectories, expected one JSON object a line\nhint: ");
  file("rollouts.jsonl", line("\"reward\": 1, \"status\": \"failed\""));
  expect("/rollouts.jsonl: none of the 1 trajectories can be trained on (all failed or aborted)\nhint: ");
  file("rollouts.jsonl", "{\n{\n");
  expect("/rollouts.jsonl: no trajectories: all 2 lines are bad; ", {"--set", "data.on_bad_line=skip"});
  std::filesystem::remove("rollouts.jsonl");
  expect("/rollouts.jsonl: no such file or folder\nhint: paths in a run file are relative to its folder\n");
  expect("/none_*.jsonl: no file matches\nhint: ", {"--set", "data.rollouts=none_*.jsonl"});
  std::filesystem::create_directories("empty");
  expect("/empty: no step_*.jsonl or step_*.jsonl.gz in this folder\nhint: ",
         {"--set", "data.rollouts=empty"});
  expect_refused(score(), 3, "error: rollouts.jsonl: cannot be opened: No such file or directory\nhint: ");
}

TEST_F(DataFaults, SkippedLinesAreCountedInTheMetrics) {
  file("rollouts.jsonl", line("\"reward\": 1") + "{\n" + line("\"reward\": 0") + "[]\n");
  const Finished done = train({"--set", "data.on_bad_line=skip"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(bytes("run/metrics.jsonl").find("\"data/bad_lines\":2.0"), std::string::npos)
      << bytes("run/metrics.jsonl");
  EXPECT_NE(done.err.find("rollouts.jsonl:2: not JSON at byte "), std::string::npos) << done.err;
}

}  // namespace
}  // namespace lathe
