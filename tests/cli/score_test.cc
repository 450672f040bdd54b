// What `lathe score` writes: every line, in order, with nothing of it lost.
#include <nlohmann/json.hpp>

#include "cli/golden_run.h"

namespace lathe {
namespace {

using nlohmann::json;

class Score : public GoldenRun {
 protected:
  static std::vector<std::string> lines_of(const std::string& name) {
    std::vector<std::string> lines;
    std::ifstream file(name);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
};

TEST_F(Score, BadLinesAreCopiedAndCountedWhenTheyAreSkipped) {
  const std::string good = R"({"prompt_ids": [1, 2], "completion_ids": [3, 4], "env": "x"})";
  const std::string bad = R"({"prompt_ids": [1], "completion_ids": [-3], "logprobs": [5]})";
  file("r.jsonl", good + "\n" + bad + "\n\n{ cut\n" + good + "\n");
  EXPECT_EQ(score({}, "r.jsonl").code, 3);
  const Finished done = score({"--set", "data.on_bad_line=skip", "--json"}, "r.jsonl");
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(json::parse(done.out).at("bad_lines"), 2);
  EXPECT_EQ(json::parse(done.out).at("trajectories"), 2);
  const auto lines = lines_of("scored.jsonl");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1], bad);
  EXPECT_EQ(lines[2], "{ cut");
  EXPECT_EQ(json::parse(lines[0]).at("logprobs").size(), 2U);
  EXPECT_EQ(lines[0], lines[3]);
  const Finished text = score({"--set", "data.on_bad_line=skip"}, "r.jsonl");
  EXPECT_NE(text.out.find("2 bad line(s) are copied without log-probs\n"), std::string::npos) << text.out;
}

TEST_F(Score, ScoringItsOwnOutputAgainChangesNothing) {
  file("r.jsonl",
       R"({"prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [-0.5, null], "status": "failed"})"
       "\n");
  ASSERT_EQ(score({}, "r.jsonl", "once.jsonl").code, 0);
  ASSERT_EQ(score({}, "once.jsonl", "twice.jsonl").code, 0);
  EXPECT_EQ(lines_of("once.jsonl"), lines_of("twice.jsonl"));
  const json line = json::parse(lines_of("twice.jsonl").at(0));
  EXPECT_EQ(line.at("rollout_logprobs"), json::parse("[-0.5, null]"));
  EXPECT_TRUE(line.at("logprobs").at(1).is_number());
}

}  // namespace
}  // namespace lathe
