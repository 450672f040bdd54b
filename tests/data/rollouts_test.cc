#include "lathe/data/rollouts.h"

#include <cmath>

#include <gtest/gtest.h>
#include <zlib.h>

#include "data/rollout_file.h"

namespace lathe {
namespace {

constexpr const char* kLine = R"({"prompt_ids": [1, 2], "completion_ids": [3, 4, 5], "reward": 1})";

std::string line_with(const std::string& members) {
  return R"({"prompt_ids": [1, 2], "completion_ids": [3, 4, 5], )" + members + "}";
}

TEST(Rollouts, ReadsEveryField) {
  const auto file = read_text(
      R"({"prompt_ids": [1, 2], "completion_ids": [3, 4, 5], "completion_mask": [1, 0, true], "reward": {"b": 2, "a": 0.5},)"
      R"( "advantage": [1, NaN, -2.5], "group_id": 9007199254740993, "rollout_logprobs": [-0.5, null, -Infinity],)"
      R"( "old_logprobs": [-1, null, -2], "ref_logprobs": [-1.5, NaN, -3], "temperature": 0.7, "status": "truncated",)"
      R"( "policy_version": 12, "routed_experts": {"data": "AAABAP//AgA=", "shape": [4, 1, 1]}, "env": "maths",)"
      R"( "prompt": "two", "completion": {"text": 1}, "metadata": [[[]]]})");
  ASSERT_EQ(file.trajectories.size(), 1U);
  EXPECT_TRUE(file.warnings.empty());
  const Trajectory& t = file.trajectories[0];
  EXPECT_EQ(t.line, 1);
  EXPECT_EQ(t.prompt_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(t.completion_ids, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(t.completion_mask, (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(t.scored_tokens(), 2);
  EXPECT_EQ(t.tokens(), 5);
  EXPECT_EQ(*t.reward, 2.5);
  EXPECT_EQ(t.reward_parts.at("a"), 0.5);
  EXPECT_EQ(t.advantage, (std::vector<double>{1, 0, -2.5}));
  EXPECT_EQ(t.group, "i:9007199254740993");
  EXPECT_EQ(t.rollout_logprobs[0], -0.5);
  EXPECT_TRUE(std::isnan(t.rollout_logprobs[1]) && std::isnan(t.rollout_logprobs[2]));
  EXPECT_TRUE(std::isnan(t.old_logprobs[1]) && std::isnan(t.ref_logprobs[1]));
  EXPECT_EQ(t.old_logprobs[2], -2);
  EXPECT_EQ(t.temperature, 0.7);
  EXPECT_EQ(t.status, TrajectoryStatus::kTruncated);
  EXPECT_TRUE(t.trains());
  EXPECT_EQ(*t.policy_version, 12);
  EXPECT_EQ(t.routed_experts->data, (std::vector<int16_t>{0, 1, -1, 2}));
  EXPECT_EQ(t.routed_experts->tokens, 4);
  EXPECT_EQ(t.env, "maths");
}

TEST(Rollouts, Defaults) {
  const Trajectory t = read_text(kLine).trajectories[0];
  EXPECT_EQ(t.completion_mask, (std::vector<uint8_t>{1, 1, 1}));
  EXPECT_EQ(t.temperature, 1.0);
  EXPECT_EQ(t.status, TrajectoryStatus::kCompleted);
  EXPECT_TRUE(t.advantage.empty() && t.old_logprobs.empty() && t.rollout_logprobs.empty() &&
              t.ref_logprobs.empty());
  EXPECT_FALSE(t.policy_version || t.routed_experts);
}

TEST(Rollouts, NullOfAnOptionalKeyIsAbsence) {
  const Trajectory t =
      read_text(line_with(R"("reward": 1, "advantage": null, "old_logprobs": null, "group_id": null,)"
                          R"( "policy_version": null, "routed_experts": null, "env": null)"))
          .trajectories[0];
  EXPECT_TRUE(t.advantage.empty() && t.old_logprobs.empty() && t.env.empty());
  EXPECT_EQ(t.group, "p:1");
}

TEST(Rollouts, BlankLinesMarkAndCarriageReturnsAreTolerated) {
  const std::string line = kLine;
  const auto file = read_text("\xEF\xBB\xBF" + line + "\r\n\r\n  \n" + line + "\r\n" + line);
  ASSERT_EQ(file.trajectories.size(), 3U);
  EXPECT_EQ(file.trajectories[1].line, 4);
  EXPECT_EQ(file.trajectories[2].line, 5);
}

TEST(Rollouts, TextIsKeptWhenAsked) {
  RolloutOptions options;
  options.keep_text = true;
  const std::string line = kLine;
  const auto file = read_text(line + "\r\n\n" + line + "\n", options);
  ASSERT_EQ(file.lines.size(), 2U);
  EXPECT_EQ(file.lines[0].text, line);
  EXPECT_EQ(file.lines[1].text, line);
  EXPECT_EQ(file.lines[1].trajectory, 1);

  options.skip_bad_lines = true;
  const auto skipped = read_text("{\n" + line + "\n", options);
  ASSERT_EQ(skipped.lines.size(), 2U);
  EXPECT_EQ(skipped.lines[0].text, "{");
  EXPECT_EQ(skipped.lines[0].trajectory, -1);
  EXPECT_EQ(skipped.lines[1].trajectory, 0);
}

TEST(Rollouts, CountsEveryLineForADisplay) {
  RolloutOptions options;
  int lines = 0;
  options.on_line = [&lines] { ++lines; };
  static_cast<void>(read_text(std::string("\n") + kLine + "\n\n" + kLine + "\n", options));
  EXPECT_EQ(lines, 4);
}

TEST(Rollouts, GzipIsReadAndACutFileIsAnError) {
  const TestFolder folder;
  const std::string path = folder.path("r.jsonl.gz");
  std::string text;
  for (int i = 0; i < 20000; ++i) text += line_with(fmt::format("\"reward\": {}", i * 7919 % 1000)) + "\n";
  gzFile out = gzopen(path.c_str(), "wb");
  gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
  gzclose(out);
  EXPECT_EQ(read_rollouts(path, {}).trajectories.size(), 20000U);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  try {
    static_cast<void>(read_rollouts(path, {}));
    FAIL() << "half a gzip file was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(error.what()).find("cannot be read"), std::string::npos) << error.what();
  }
}

// What a writer appends after the file was chosen is not seen, and less than was chosen is not taken for all.
TEST(Rollouts, TheFirstBytesOfAFileAlone) {
  const TestFolder folder;
  const std::string whole = std::string(kLine) + "\n";
  const std::string path = folder.write("r.jsonl", whole + whole + "{\"cut");
  RolloutOptions options;
  options.bytes = static_cast<int64_t>(2 * whole.size());
  EXPECT_EQ(read_rollouts(path, options).trajectories.size(), 2U);
  std::filesystem::resize_file(path, whole.size());
  try {
    static_cast<void>(read_rollouts(path, options));
    FAIL() << "a part was taken for the whole";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_EQ(std::string(error.what()),
              fmt::format("{}: ends after {} bytes, expected {}", path, whole.size(), 2 * whole.size()));
  }
}

// gzip -c >>: one member after the other; bytes are those on disk.
TEST(Rollouts, GzipMembersAreReadOneAfterTheOther) {
  const TestFolder folder;
  const std::string path = folder.path("r.jsonl.gz");
  const auto append = [&path](const std::string& text) {
    gzFile out = gzopen(path.c_str(), "ab");
    gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
    gzclose(out);
    return static_cast<int64_t>(std::filesystem::file_size(path));
  };
  RolloutOptions options;
  options.bytes = append(std::string(kLine) + "\n");
  append(std::string(kLine) + "\n" + kLine + "\n");
  EXPECT_EQ(read_rollouts(path, {}).trajectories.size(), 3U);
  EXPECT_EQ(read_rollouts(path, options).trajectories.size(), 1U);
  std::ofstream(path, std::ios::app) << std::string(7, '\0');
  EXPECT_EQ(read_rollouts(path, {}).trajectories.size(), 3U);
  std::ofstream(path, std::ios::app) << "\x1f\x8b cut";
  EXPECT_EQ(read_rollouts(path, {}).trajectories.size(), 3U);  // after the zeros: no member
  --options.bytes;
  EXPECT_THROW(static_cast<void>(read_rollouts(path, options)), Error);
}

TEST(Rollouts, GroupsByIdOrByEqualPromptsOfConsecutiveLines) {
  const auto with_prompt = [](const std::string& ids, const std::string& more = "") {
    return R"({"prompt_ids": [)" + ids + R"(], "completion_ids": [3], "reward": 1)" + more + "}\n";
  };
  const auto file =
      read_text(with_prompt("1, 2") + with_prompt("1, 2") + with_prompt("7") + with_prompt("1, 2") +
                with_prompt("1, 2", R"(, "group_id": 7)") + with_prompt("9", R"(, "group_id": "7")") +
                with_prompt("9", R"(, "group_id": 18446744073709551615)"));
  std::vector<std::string> groups;
  for (const auto& t : file.trajectories) groups.push_back(t.group);
  EXPECT_EQ(groups,
            (std::vector<std::string>{"p:1", "p:1", "p:2", "p:3", "i:7", "s:7", "i:18446744073709551615"}));
}

TEST(Rollouts, RewardWeights) {
  RolloutOptions options;
  options.reward_weights = {{"format", 0.25}};
  EXPECT_EQ(*read_text(line_with(R"("reward": {"right": 1, "format": 2})"), options).trajectories[0].reward,
            1.5);
  EXPECT_EQ(read_fault(line_with(R"("reward": {"right": 1})"), options).message,
            "r.jsonl:1: reward.format: missing, expected it, for grpo.reward_weights names it; this line has "
            "right");
  EXPECT_EQ(read_fault(line_with(R"("reward": 1)"), options).message,
            "r.jsonl:1: reward: 1, expected an object with the parts that grpo.reward_weights weighs, such "
            "as format");
}

// One number in many notations; zeros with an exponent or many digits most of all.
TEST(Rollouts, NumbersAreReadExactly) {
  const std::vector<std::pair<std::string, double>> cases = {
      {"0e308", 0},
      {"-0e-308", 0},
      {"0.00000000000000000000000000000000000000000", 0},
      {"0.0000000000000000000000000000000000000000e-30", 0},
      {"0.1", 0.1},
      {"-0.30000000000000004", -0.1 - 0.2},
      {"123456789012345678901234567890", 123456789012345678901234567890.0},
      {"18446744073709551615", 18446744073709551615.0},
      {"4.9406564584124654e-324", 4.9406564584124654e-324},
      {"1e-400", 0},
      {"2.2250738585072011e-308", 2.2250738585072011e-308},
      {"9007199254740993.0", 9007199254740992.0},
      {"1.7976931348623157e30", 1.7976931348623157e30},
  };
  for (const auto& [text, value] : cases) {
    SCOPED_TRACE(text);
    const RolloutFile file =
        read_text(R"({"prompt_ids": [1], "completion_ids": [2], "reward": )" + text + "}\n");
    EXPECT_EQ(file.trajectories.at(0).reward, value);
  }
}

TEST(Rollouts, RewardMayBeMissingOnlyWhereNothingNeedsIt) {
  RolloutOptions options;
  options.need_reward = true;
  EXPECT_EQ(read_fault(line_with(R"("reward": null)"), options).message,
            "r.jsonl:1: reward: null, expected a finite number, an object of them, or an advantage instead");
  EXPECT_EQ(
      read_fault(line_with(R"("env": "x")"), options).message,
      "r.jsonl:1: reward: missing, expected a finite number, an object of them, or an advantage instead");
  EXPECT_EQ(read_text(line_with(R"("reward": null, "advantage": 0.5)"), options).trajectories[0].advantage[0],
            0.5);
  EXPECT_FALSE(read_text(line_with(R"("status": "failed")"), options).trajectories[0].trains());
  EXPECT_FALSE(read_text(line_with(R"("reward": null)")).trajectories[0].reward);
}

TEST(Rollouts, PeersNamesAreRead) {
  const auto verl =
      read_text(R"({"prompts": [1], "responses": [2, 3], "response_mask": [1, 0], "uid": "a",)"
                R"( "rollout_log_probs": [-1, -2], "old_log_probs": [-3, -4], "ref_log_prob": [-5, -6],)"
                R"( "score": 1.5, "data_source": "gsm8k", "param_version": 4, "advantages": [1, 2]})");
  const Trajectory& t = verl.trajectories[0];
  EXPECT_EQ(t.completion_ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(t.completion_mask, (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(t.group, "s:a");
  EXPECT_EQ(t.rollout_logprobs[1], -2);
  EXPECT_EQ(t.old_logprobs[1], -4);
  EXPECT_EQ(t.ref_logprobs[1], -6);
  EXPECT_EQ(*t.reward, 1.5);
  EXPECT_EQ(t.env, "gsm8k");
  EXPECT_EQ(*t.policy_version, 4);
  EXPECT_EQ(t.advantage[1], 2);
  ASSERT_EQ(verl.warnings.size(), 11U);
  EXPECT_NE(verl.warnings[0].find("r.jsonl:1: prompts is read as prompt_ids"), std::string::npos)
      << verl.warnings[0];
}

TEST(Rollouts, EveryLogProbName) {
  const struct {
    std::vector<double> Trajectory::*field;
    std::vector<const char*> names;
  } cases[] = {{&Trajectory::rollout_logprobs,
                {"rollout_logprobs", "rollout_log_probs", "sampling_per_token_logps", "generation_logprobs",
                 "inference_logprobs", "logprobs", "rollout_per_token_logps"}},
               {&Trajectory::old_logprobs,
                {"old_logprobs", "old_log_probs", "old_per_token_logps", "prev_logprobs", "action_log_probs",
                 "log_probs"}},
               {&Trajectory::ref_logprobs,
                {"ref_logprobs", "ref_log_prob", "ref_log_probs", "ref_per_token_logps",
                 "reference_policy_logprobs", "base_action_log_probs"}}};
  for (const auto& c : cases) {
    for (const char* name : c.names) {
      const auto file = read_text(line_with(fmt::format("\"{}\": [-1, -2, -3]", name)));
      EXPECT_EQ(file.trajectories[0].*c.field, (std::vector<double>{-1, -2, -3})) << name;
    }
  }
}

TEST(Rollouts, WholeSequenceMaskLosesItsPromptPart) {
  const auto mask_of = [](const std::string& member) {
    return read_text(line_with(member)).trajectories[0].completion_mask;
  };
  EXPECT_EQ(mask_of(R"("loss_mask": [0, 0, 1, 0, 1])"), (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(mask_of(R"("loss_mask": [1, 0, 1])"), (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(
      read_fault(line_with(R"("loss_mask": [1, 0])")).message,
      "r.jsonl:1: loss_mask: 2 values, expected 3, one for each completion token, or 5 with the prompt");
}

TEST(Rollouts, OneListOfTokensIsSplit) {
  const auto slime =
      read_text(R"({"tokens": [1, 2, 3, 4], "response_length": 3, "loss_mask": [1, 0, 1],)"
                R"( "rollout_log_probs": [-1, -2, -3], "reward": 1, "index": 5, "group_index": 2})");
  EXPECT_EQ(slime.trajectories[0].prompt_ids, (std::vector<int32_t>{1}));
  EXPECT_EQ(slime.trajectories[0].completion_ids, (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(slime.trajectories[0].group, "i:2");
  const auto whole =
      read_text(R"({"input_ids": [1, 2, 3, 4], "token_mask": [0, 0, 1, 1],)"
                R"( "generation_logprobs": [0, 0, -1, -2], "idx": 6, "temperatures": [0.7, 0.7]})");
  EXPECT_EQ(whole.trajectories[0].prompt_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(whole.trajectories[0].completion_mask, (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(whole.trajectories[0].rollout_logprobs, (std::vector<double>{-1, -2}));
  EXPECT_EQ(whole.trajectories[0].group, "i:6");
  EXPECT_EQ(whole.trajectories[0].temperature, 0.7);
  EXPECT_EQ(read_fault(R"({"tokens": [1, 2], "response_length": 2})").message,
            "r.jsonl:1: response_length: 2, expected an integer in [1, 2), for tokens has 2 tokens");
  EXPECT_EQ(read_fault(R"({"tokens": [1, 2]})").message,
            "r.jsonl:1: completion_ids: missing, expected it, or response_length or loss_mask beside tokens");
}

TEST(Rollouts, TheWholeSequenceBesideItsPartsMustBeTheParts) {
  const auto file = read_text(
      R"({"prompt_ids": [1], "completion_ids": [2, 3], "input_ids": [1, 2, 3], "response_length": 2, "reward": 1})");
  EXPECT_EQ(file.trajectories[0].completion_ids, (std::vector<int32_t>{2, 3}));
}

TEST(Rollouts, LogProbsALittleAboveZeroAreWarnedAboutOnce) {
  const std::string line = line_with(R"("reward": 1, "old_logprobs": [0.002, 0.01, -1])");
  const auto file = read_text(line + "\n" + line + "\n");
  ASSERT_EQ(file.warnings.size(), 1U);
  EXPECT_NE(file.warnings[0].find("r.jsonl:1: old_logprobs[0] is 0.002, above 0"), std::string::npos)
      << file.warnings[0];
  // Rounding is none of it, and what is not scored says nothing.
  EXPECT_TRUE(read_text(line_with(R"("old_logprobs": [0.0009, -1, -1])")).warnings.empty());
  EXPECT_TRUE(read_text(line_with(R"("completion_mask": [0, 1, 1], "rollout_logprobs": [9, -1, -1])"))
                  .warnings.empty());
}

TEST(Rollouts, WhatScoreAddsIsNotTheSamplers) {
  const auto file =
      read_text(line_with(R"("reward": 1, "rollout_logprobs": [-1, -2, -3], "logprobs": [-7, -7, -7],)"
                          R"( "entropy": [1, 1, 1])"));
  EXPECT_EQ(file.trajectories[0].rollout_logprobs, (std::vector<double>{-1, -2, -3}));
  EXPECT_TRUE(file.warnings.empty());
  EXPECT_TRUE(read_text(line_with(R"("logprobs": [-7, -7, -7], "entropy": [1, 1, 1])"))
                  .trajectories[0]
                  .rollout_logprobs.empty());
}

TEST(Rollouts, UnknownKeysAreWarnedAboutOnce) {
  const std::string line =
      line_with(R"("reward": 1, "completion_msk": [0, 0, 0], "zzzzzzzzzzzzzzzzzzzzzzzz": 1)");
  const auto file = read_text(line + "\n" + line + "\n");
  ASSERT_EQ(file.warnings.size(), 2U);
  EXPECT_NE(file.warnings[0].find("unknown key completion_msk is not read; did you mean completion_mask?"),
            std::string::npos)
      << file.warnings[0];
  EXPECT_EQ(file.trajectories[0].scored_tokens(), 3);
}

TEST(Rollouts, BadLinesAreSkippedAndCounted) {
  RolloutOptions options;
  options.skip_bad_lines = true;
  const std::string good = kLine;
  const auto file = read_text(good + "\n{\n" + good + "\n" + line_with(R"("reward": NaN)") + "\n", options);
  EXPECT_EQ(file.trajectories.size(), 2U);
  EXPECT_EQ(file.bad_lines, 2);
  ASSERT_EQ(file.warnings.size(), 2U);
  EXPECT_NE(file.warnings[1].find("line left out: "), std::string::npos);
  EXPECT_NE(file.warnings[1].find("r.jsonl:4: reward: NaN"), std::string::npos);
  EXPECT_EQ(read_fault("{\n", options).message.substr(0, 44), "r.jsonl: no trajectories: all 1 lines are ba");
}

}  // namespace
}  // namespace lathe
