#include "lathe/loop/step_hints.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Metrics = std::vector<std::pair<std::string, double>>;

std::vector<std::string> texts(const std::vector<Hint>& hints) {
  std::vector<std::string> texts;
  for (const Hint& hint : hints) texts.push_back((hint.warning ? "W " : "I ") + hint.text);
  return texts;
}
using Texts = std::vector<std::string>;

const Metrics kOnPolicy{{"policy/active_sequences", 8}, {"policy/ratio_mean", 1}, {"policy/clip_frac", 0},
                        {"policy/loss", 0.0012},        {"adv/nonzero_frac", 1},  {"group/count", 2}};

Metrics with(Metrics metrics, const Metrics& changes) {
  for (const auto& change : changes) {
    std::erase_if(metrics, [&](const auto& metric) { return metric.first == change.first; });
    metrics.push_back(change);
  }
  return metrics;
}

TEST(StepHints, FactsOfTheFirstStepAlone) {
  StepHints hints;
  EXPECT_EQ(texts(hints.check(1, kOnPolicy)),
            Texts{"I step 1: mean ratio 1, clip 0.0%, as it must be before the first update; the loss "
                  "(0.0012) then only "
                  "says how the advantages average out: judge by reward and grad"});
  EXPECT_TRUE(hints.check(2, kOnPolicy).empty());
  EXPECT_TRUE(StepHints().check(1, with(kOnPolicy, {{"policy/active_sequences", 0}})).empty());
}

TEST(StepHints, OldLogProbsOfOtherWeights) {
  EXPECT_EQ(
      texts(StepHints().check(1, with(kOnPolicy, {{"policy/ratio_mean", 2}}))),
      Texts{
          "W step 1: the mean ratio is 2, expected 1 before the first update: the old_logprobs are of other "
          "weights, or of another temperature than the line says"});
  EXPECT_EQ(texts(StepHints().check(1, with(kOnPolicy, {{"policy/ratio_mean", 1.009}})))[0].substr(0, 2),
            "I ");
}

TEST(StepHints, DroppedSlotsAreSaidOnceAndExplainTheRatio) {
  StepHints hints;
  const Metrics dropped = with(kOnPolicy, {{"policy/ratio_mean", 2}, {"moe/dropped_frac", 0.24}});
  EXPECT_EQ(texts(hints.check(1, dropped)),
            Texts{"W step 1: 24% of the tokens' choices found no room with their experts and were dropped "
                  "(moe/dropped_frac), so that log-probs and ratios are not quite the model's: raise "
                  "moe.ragged_buffer_factor, or set it to -1"});
  EXPECT_TRUE(hints.check(2, dropped).empty());
}

TEST(StepHints, NoSpreadInAnyGroupIsSaidOnce) {
  StepHints hints;
  const Metrics equal = with(kOnPolicy, {{"group/zero_std_frac", 1}, {"adv/nonzero_frac", 0}});
  const auto said = texts(hints.check(3, equal));
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].substr(0, 92),
            "W step 3: the rewards within every group are equal, so that every advantage is 0 and nothing");
  EXPECT_TRUE(hints.check(4, equal).empty());
  EXPECT_TRUE(StepHints().check(3, with(equal, {{"group/zero_std_frac", 0.5}})).empty());
  // Some too small, the others equal.
  EXPECT_EQ(StepHints().check(3, with(equal, {{"group/zero_std_frac", 0.5}, {"group/too_small", 1}})).size(),
            1U);
  // Advantages that the file gives belong to no group.
  EXPECT_TRUE(StepHints().check(3, with(equal, {{"group/count", 0}})).empty());
  EXPECT_TRUE(StepHints().check(3, with(equal, {{"adv/nonzero_frac", 0.1}})).empty());
}

TEST(StepHints, GroupsOfOne) {
  StepHints hints;
  const Metrics lonely = with(kOnPolicy, {{"group/too_small", 2}, {"adv/nonzero_frac", 0}});
  EXPECT_EQ(texts(hints.check(2, lonely)), Texts{"W step 2: every group has fewer than two trajectories, so "
                                                 "that every advantage is 0 and nothing is "
                                                 "learned: is group_id missing or unique?"});
  EXPECT_TRUE(hints.check(3, lonely).empty());
}

// A sampler that kept 90 % of the probability and renormalised: log(1 / 0.9) at every token.
TEST(StepHints, AGapWithOneSignIsSaidOnceWithItsSign) {
  StepHints hints;
  const Metrics top_p =
      with(kOnPolicy, {{"mismatch/tokens", 500}, {"mismatch/mean", -0.105}, {"mismatch/abs_mean", 0.106}});
  const auto said = texts(hints.check(5, top_p));
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0],
            "W step 5: the sampler's log-probs are higher than the trainer's by 0.105 on average, almost "
            "everywhere: did "
            "it sample with top-p or top-k and report log-probs of what was left? Ratios to the sampler are "
            "then off by "
            "that factor at every token");
  EXPECT_TRUE(hints.check(6, top_p).empty());
  const auto lower = texts(StepHints().check(5, with(top_p, {{"mismatch/mean", 0.105}})));
  ASSERT_EQ(lower.size(), 1U);
  EXPECT_NE(lower[0].find("are lower than the trainer's by 0.105"), std::string::npos);
  for (const Metrics& usual :
       {Metrics{{"mismatch/mean", -0.05}}, Metrics{{"mismatch/mean", -0.01}, {"mismatch/abs_mean", 0.01}},
        Metrics{{"mismatch/tokens", 99}}}) {
    EXPECT_TRUE(StepHints().check(5, with(top_p, usual)).empty());
  }
}

TEST(StepHints, WhatWasSaidIsNotSaidAgainAfterARestore) {
  StepHints hints;
  const Metrics equal = with(kOnPolicy, {{"group/zero_std_frac", 1}, {"adv/nonzero_frac", 0}});
  EXPECT_EQ(hints.check(3, equal).size(), 1U);
  StepHints resumed;
  auto state = hints.said();
  state["policy/loss"] = {1, 2};  // not of hints
  resumed.restore(state);
  EXPECT_TRUE(resumed.check(4, equal).empty());
  EXPECT_EQ(resumed.said(), hints.said());
}

}  // namespace
}  // namespace lathe
