// Each fault of a rollout line alone, with the exact message.
#include <ostream>
#include <random>

#include <gtest/gtest.h>

#include "data/rollout_file.h"

namespace lathe {
namespace {

struct Fault {
  const char* name;
  std::string line;
  std::string message;  // after "r.jsonl:1: "
};

std::string with(const std::string& members) {
  return R"({"prompt_ids": [1, 2], "completion_ids": [3, 4, 5], )" + members + "}";
}
std::string ids(const std::string& prompt, const std::string& completion) {
  return R"({"prompt_ids": )" + prompt + R"(, "completion_ids": )" + completion + R"(, "reward": 1})";
}

// gtest prints parameters byte by byte without this.
std::ostream& operator<<(std::ostream& out, const Fault& fault) {
  return out << fault.name;
}

class RolloutFault : public ::testing::TestWithParam<Fault> {};

TEST_P(RolloutFault, IsNamedWithValueAndExpectation) {
  RolloutOptions options;
  options.vocab_size = 100;
  const ReadFault fault = read_fault(GetParam().line + "\n", options);
  EXPECT_EQ(fault.message, "r.jsonl:1: " + GetParam().message);
  EXPECT_FALSE(fault.hint.empty());
}

const char* const kReward = "a finite number, or an object of them";
const char* const kTemperature = "temperature: {}, expected a finite number >= 1e-05";

std::vector<Fault> id_faults() {
  return {
      {"NoPrompt", R"({"completion_ids": [3]})", "prompt_ids: missing, expected an array of token ids"},
      {"NoCompletion", R"({"prompt_ids": [3]})", "completion_ids: missing, expected an array of token ids"},
      {"EmptyPrompt", ids("[]", "[3]"), "prompt_ids: empty, expected at least one token id"},
      {"EmptyCompletion", ids("[3]", "[]"), "completion_ids: empty, expected at least one token id"},
      {"NullPrompt", ids("null", "[3]"), "prompt_ids: null, expected an array of token ids"},
      {"TextPrompt", ids("\"hello\"", "[3]"), "prompt_ids: \"hello\", expected an array of token ids"},
      {"IdTooLarge", ids("[1, 100]", "[3]"), "prompt_ids[1]: 100, expected an integer in [0, 100)"},
      {"IdNegative", ids("[1]", "[3, -100]"), "completion_ids[1]: -100, expected an integer in [0, 100)"},
      {"IdTwoTo31", ids("[1]", "[2147483648]"),
       "completion_ids[0]: 2147483648, expected an integer in [0, 100)"},
      {"IdTwoTo64", ids("[1]", "[18446744073709551616]"),
       "completion_ids[0]: 1.8446744073709552e+19, expected an integer in [0, 100)"},
      {"IdReal", ids("[3.0]", "[3]"), "prompt_ids[0]: 3.0, expected an integer in [0, 100)"},
      {"IdBool", ids("[true]", "[3]"), "prompt_ids[0]: true, expected an integer in [0, 100)"},
      {"WholeDiffers", with(R"("tokens": [1, 2, 3, 4, 6])"),
       "tokens: 5 ids that leave those of the prompt and completion (5) at 4, expected the same ids, or one "
       "of the two "
       "forms"},
      {"WholeLonger", with(R"("input_ids": [1, 2, 3, 4, 5, 0])"),
       "input_ids: 6 ids that leave those of the prompt and completion (5) at 5, expected the same ids, or "
       "one of the "
       "two forms"},
      {"ResponseLengthDiffers", with(R"("response_length": 2)"),
       "response_length: 2, expected 3, the number of completion ids"},
      {"IdNested", ids("[[1]]", "[3]"), "prompt_ids[0]: an array of 1, expected an integer in [0, 100)"},
  };
}

std::vector<Fault> length_faults() {
  const std::string c = "3, one for each completion token";
  return {
      {"MaskShort", with(R"("completion_mask": [1, 1])"), "completion_mask: 2 values, expected " + c},
      {"MaskLong", with(R"("completion_mask": [1, 1, 1, 1, 1])"), "completion_mask: 5 values, expected " + c},
      {"MaskTwo", with(R"("completion_mask": [1, 2, 1])"), "completion_mask[1]: 2, expected 0 or 1"},
      {"MaskHalf", with(R"("completion_mask": [1, 0.5, 1])"), "completion_mask[1]: 0.5, expected 0 or 1"},
      {"MaskText", with(R"("completion_mask": "111")"),
       "completion_mask: \"111\", expected an array of 3 values, one for each completion token"},
      {"RolloutShort", with(R"("rollout_logprobs": [-1, -1])"), "rollout_logprobs: 2 values, expected " + c},
      {"RolloutLong", with(R"("rollout_logprobs": [-1, -1, -1, -1])"),
       "rollout_logprobs: 4 values, expected " + c},
      {"RolloutEmpty", with(R"("rollout_logprobs": [])"), "rollout_logprobs: 0 values, expected " + c},
      {"RolloutWithPrompt", with(R"("rollout_logprobs": [0, 0, -1, -1, -1])"),
       "rollout_logprobs: 5 values, expected " + c},
      {"RolloutInfinite", with(R"("rollout_logprobs": [-1, Infinity, -1])"),
       "rollout_logprobs[1]: Infinity, expected a number, or null, NaN or -Infinity for none"},
      {"RolloutText", with(R"("rollout_logprobs": [-1, "x", -1])"),
       "rollout_logprobs[1]: \"x\", expected a number, or null, NaN or -Infinity for none"},
      {"RolloutProbability", with(R"("rollout_logprobs": [-1, 0.5, -1])"),
       "rollout_logprobs[1]: 0.5, expected at most 0, for it is the log of a probability"},
      {"OldProbability", with(R"("old_logprobs": [0.9, -1, -1])"),
       "old_logprobs[0]: 0.9, expected at most 0, for it is the log of a probability"},
      {"RefProbability", with(R"("ref_logprobs": [-1, -1, 1])"),
       "ref_logprobs[2]: 1, expected at most 0, for it is the log of a probability"},
      {"OldNull", with(R"("old_logprobs": [-1, null, -1])"),
       "old_logprobs[1]: null, expected a finite number at a scored token"},
      {"OldNan", with(R"("old_logprobs": [-1, NaN, -1])"),
       "old_logprobs[1]: NaN, expected a finite number at a scored token"},
      {"RefInfinite", with(R"("ref_logprobs": [-1, -1, -Infinity])"),
       "ref_logprobs[2]: -Infinity, expected a finite number at a scored token"},
      {"AdvantageShort", with(R"("advantage": [1])"), "advantage: 1 values, expected " + c},
      {"AdvantageNan", with(R"("advantage": [1, NaN, 1])"), "advantage[1]: NaN, expected a finite number"},
      {"AdvantageNanAlone", with(R"("advantage": NaN)"),
       "advantage: NaN, expected a finite number, or one for each completion token"},
  };
}

std::vector<Fault> scalar_faults() {
  return {
      {"RewardNan", with(R"("reward": NaN)"), fmt::format("reward: NaN, expected {}", kReward)},
      {"RewardInfinite", with(R"("reward": Infinity)"),
       fmt::format("reward: Infinity, expected {}", kReward)},
      {"RewardHuge", with(R"("reward": 1e39)"), fmt::format("reward: 1e+39, expected {}", kReward)},
      {"RewardText", with(R"("reward": "0.5")"), fmt::format("reward: \"0.5\", expected {}", kReward)},
      {"RewardBool", with(R"("reward": true)"), fmt::format("reward: true, expected {}", kReward)},
      {"RewardArray", with(R"("reward": [1, 2])"),
       fmt::format("reward: an array of 2, expected {}", kReward)},
      {"RewardPart", with(R"("reward": {"a": 1, "b": null})"), "reward.b: null, expected a finite number"},
      {"RewardSum", with(R"("reward": {"a": 3e38, "b": 3e38})"),
       "reward: a weighted sum of 6e+38, expected a finite one"},
      {"RewardNoPart", with(R"("reward": {})"), "reward: an empty object, expected at least one part"},
      {"TemperatureZero", with(R"("temperature": 0)"), fmt::format(fmt::runtime(kTemperature), "0")},
      {"TemperatureNegative", with(R"("temperature": -1)"), fmt::format(fmt::runtime(kTemperature), "-1")},
      {"TemperatureTooCold", with(R"("temperature": 9e-6)"),
       fmt::format(fmt::runtime(kTemperature), "9e-06")},
      {"TemperatureNan", with(R"("temperature": NaN)"), fmt::format(fmt::runtime(kTemperature), "NaN")},
      {"TemperatureNull", with(R"("temperature": null)"), fmt::format(fmt::runtime(kTemperature), "null")},
      {"TemperatureText", with(R"("temperature": "1")"), fmt::format(fmt::runtime(kTemperature), "\"1\"")},
      {"TemperaturesDiffer", with(R"("temperatures": [1, 1, 0.7])"),
       "temperatures[2]: 0.7, expected 1, as at the first token"},
      {"Status", with(R"("status": "done")"),
       "status: \"done\", expected \"completed\", \"truncated\", \"aborted\" or \"failed\""},
      {"StatusNumber", with(R"("status": 1)"),
       "status: 1, expected \"completed\", \"truncated\", \"aborted\" or \"failed\""},
      {"StatusContradicted", with(R"("status": "truncated", "truncated": false)"),
       "truncated: false, expected what status \"truncated\" says"},
      {"GroupReal", with(R"("group_id": 1.5)"), "group_id: 1.5, expected an integer or a string"},
      {"GroupArray", with(R"("group_id": [1])"), "group_id: an array of 1, expected an integer or a string"},
      {"VersionReal", with(R"("policy_version": 1.5)"), "policy_version: 1.5, expected an integer"},
  };
}

std::vector<Fault> line_faults() {
  const std::string object = ", expected one object a line";
  return {
      {"Array", "[1, 2]", "an array of 2" + object},
      {"Number", "17", "17" + object},
      {"Cut", R"({"prompt_ids": [1, 2)",
       "not JSON at byte 21: Missing a comma or ']' after an array element" + object},
      {"TwoObjects", "{} {}",
       "not JSON at byte 4: The document root must not be followed by other values" + object},
      {"NumberTooBig", R"({"reward": 1e999})",
       "not JSON at byte 12: Number too big to be stored in double" + object},
      {"BadUtf8", "{\"env\": \"\xC3\x28\"}", "not JSON at byte 10: Invalid encoding in string" + object},
      {"ZeroByte", std::string("{}\0{", 4), "not JSON at byte 3: a zero byte" + object},
      {"Twice", with(R"("reward": 1, "reward": 2)"), "reward: given twice, expected each key once"},
      {"KeyAndAlias", with(R"("reward": 1, "score": 2)"),
       "score: names the same as reward, which is given too, expected one of the two"},
      {"TwoAliases", with(R"("uid": 1, "group_index": 2)"),
       "group_index: names the same as uid, which is given too, expected one of the two"},
      {"LogprobsTwice", with(R"("rollout_logprobs": [0, 0, 0], "logprobs": [0, 0, 0])"),
       "logprobs: names the same as rollout_logprobs, which is given too, expected one of the two"},
  };
}

std::vector<Fault> routing_faults() {
  const auto routing = [](const std::string& value) { return with(R"("routed_experts": )" + value); };
  return {
      {"RoutingArray", routing("[1]"),
       "routed_experts: an array of 1, expected {\"data\": base64 of little-endian int16, \"shape\": "
       "[tokens, MoE layers, top_k]}"},
      {"RoutingNoData", routing(R"({"shape": [5, 1, 1]})"),
       "routed_experts.data: missing, expected a base64 string"},
      {"RoutingNoShape", routing(R"({"data": ""})"),
       "routed_experts.shape: missing, expected [tokens, MoE layers, top_k]"},
      {"RoutingTokens", routing(R"({"data": "", "shape": [3, 1, 1]})"),
       "routed_experts.shape[0]: 3, expected 5 tokens, or 4 without the last"},
      {"RoutingZero", routing(R"({"data": "", "shape": [5, 0, 1]})"),
       "routed_experts.shape[1]: 0, expected an integer >= 1"},
      {"RoutingBase64", routing(R"({"data": "AA*A", "shape": [5, 1, 1]})"),
       "routed_experts.data: \"AA*A\", expected base64 text"},
      {"RoutingBytes", routing(R"({"data": "AAAA", "shape": [5, 1, 1]})"),
       "routed_experts.data: 3 bytes, expected 2 x 5 x 1 x 1, for the shape"},
      {"RoutingDtype", routing(R"({"data": "AAAA", "shape": [5, 1, 1], "dtype": "uint8"})"),
       "routed_experts.dtype: \"uint8\", expected \"int16\""},
      {"RoutingOverflow", routing(R"({"data": "AAAA", "shape": [5, 2147483647, 2147483647]})"),
       "routed_experts.data: 3 bytes, expected 2 x 5 x 2147483647 x 2147483647, for the shape"},
  };
}

std::string fault_name(const ::testing::TestParamInfo<Fault>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Ids, RolloutFault, ::testing::ValuesIn(id_faults()), fault_name);
INSTANTIATE_TEST_SUITE_P(Lengths, RolloutFault, ::testing::ValuesIn(length_faults()), fault_name);
INSTANTIATE_TEST_SUITE_P(Scalars, RolloutFault, ::testing::ValuesIn(scalar_faults()), fault_name);
INSTANTIATE_TEST_SUITE_P(Lines, RolloutFault, ::testing::ValuesIn(line_faults()), fault_name);
INSTANTIATE_TEST_SUITE_P(Routing, RolloutFault, ::testing::ValuesIn(routing_faults()), fault_name);

TEST(RolloutFaults, LineNumberIsTheFilesOwn) {
  const std::string good = R"({"prompt_ids": [1], "completion_ids": [2], "reward": 1})";
  EXPECT_EQ(read_fault(good + "\n\n" + good + "\n{\"prompt_ids\": 3}\n").message,
            "r.jsonl:4: prompt_ids: 3, expected an array of token ids");
}

TEST(RolloutFaults, IdsAreBoundedWithoutAVocabularyToo) {
  EXPECT_EQ(read_fault(ids("[2147483648]", "[1]")).message,
            "r.jsonl:1: prompt_ids[0]: 2147483648, expected an integer in [0, 2147483648)");
}

TEST(RolloutFaults, EmptyMissingAndFolder) {
  EXPECT_EQ(read_fault("").message, "r.jsonl: no trajectories, expected one JSON object a line");
  EXPECT_EQ(read_fault("\n \n").message, "r.jsonl: no trajectories, expected one JSON object a line");
  const TestFolder folder;
  for (const std::string& path : {folder.path("none.jsonl"), folder.path("")}) {
    EXPECT_THROW(static_cast<void>(read_rollouts(path, {})), Error) << path;
  }
}

TEST(RolloutFaults, DeepNestingIsSafe) {
  const std::string deep(200000, '[');
  EXPECT_NE(read_fault(with("\"metadata\": " + deep)).message.find("not JSON"), std::string::npos);
  const std::string closed = deep + std::string(deep.size(), ']');
  EXPECT_EQ(read_text(with("\"metadata\": " + closed)).trajectories.size(), 1U);
}

// Damaged lines end in a data error or are read, whatever the damage.
TEST(RolloutFaults, DamagedLinesNeverDoWorse) {
  const std::string whole = with(
      R"("reward": {"a": 1e-3, "b": -2}, "advantage": [1, 2, 3], "group_id": 12, "temperature": 0.7, "env": "x",)"
      R"( "rollout_logprobs": [-0.25, null, -Infinity], "routed_experts": {"data": "AAABAP//AgA=", "shape": [4, 1, 1]})");
  std::mt19937 engine(7);
  const std::string alphabet = "{}[]\",:0123456789eE.-+nNaIif\\u \xC3\xFF";
  RolloutOptions options;
  options.skip_bad_lines = true;
  std::string text = whole + "\n";
  for (int round = 0; round < 3000; ++round) {
    std::string line = whole;
    for (size_t change = 0; change <= round % 3U; ++change) {
      const size_t at = engine() % line.size();
      const char letter = alphabet[engine() % alphabet.size()];
      if (engine() % 3 == 0) {
        line.erase(at, 1 + engine() % 4);
      } else if (engine() % 2 == 0) {
        line.insert(at, 1, letter);
      } else {
        line[at] = letter;
      }
    }
    text += line + "\n";
  }
  const RolloutFile file = read_text(text, options);
  EXPECT_EQ(static_cast<int64_t>(file.trajectories.size()) + file.bad_lines, 3001);
  EXPECT_GT(file.bad_lines, 1000);
  for (const Trajectory& t : file.trajectories) {
    EXPECT_FALSE(t.prompt_ids.empty());
    EXPECT_EQ(t.completion_mask.size(), t.completion_ids.size());
  }
}

}  // namespace
}  // namespace lathe
