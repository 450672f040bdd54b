#include "lathe/data/micro_batch.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "lathe/core/error.h"
#include "lathe/data/step_checks.h"

namespace lathe {
namespace {

Trajectory trajectory(int64_t line, int prompt, std::vector<uint8_t> mask, int32_t first_id = 10) {
  Trajectory t;
  t.line = line;
  for (int i = 0; i < prompt; ++i) t.prompt_ids.push_back(first_id++);
  for (size_t i = 0; i < mask.size(); ++i) t.completion_ids.push_back(first_id++);
  t.completion_mask = std::move(mask);
  t.temperature = 0.5 + static_cast<double>(line);
  for (size_t i = 0; i < t.completion_ids.size(); ++i) {
    t.old_logprobs.push_back(-static_cast<double>(100 * line) - static_cast<double>(i));
  }
  return t;
}

std::vector<PackedMicroBatch> pack_all(const std::vector<Trajectory>& all, int64_t row_length,
                                       int64_t alignment) {
  PackingOptions options;
  options.row_length = row_length;
  options.segment_alignment = alignment;
  options.rows_per_micro_batch = 2;
  std::vector<int64_t> lengths;
  for (const Trajectory& t : all) lengths.push_back(t.tokens());
  return pack(lengths, options);
}

std::string fault(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    return error.what();
  }
  return "no error";
}

struct MicroBatchTest : ::testing::Test {
  std::vector<Trajectory> all = {trajectory(1, 2, {1, 0, 1}), trajectory(2, 1, {1, 1}, 50)};
  std::vector<std::vector<double>> advantages = {{1, 2, 3}, {-4}};
  MicroBatchOptions options;

  MicroBatch build(bool with_advantages = true) {
    const auto packed = pack_all(all, 16, 8);
    EXPECT_EQ(packed.size(), 1U);
    return build_micro_batch(packed[0], all,
                             with_advantages ? advantages : std::vector<std::vector<double>>(), 16, options);
  }
};

TEST_F(MicroBatchTest, TokensAndScoredPositions) {
  const MicroBatch m = build();
  EXPECT_EQ(m.rows, 1) << "the second row is empty";
  EXPECT_EQ(m.real_tokens, 8);
  std::vector<int32_t> ids(16, 0);
  std::vector<int32_t> segments(16, 0);
  std::vector<int32_t> positions(16, 0);
  for (int k = 0; k < 5; ++k) ids[k] = 10 + k, segments[k] = 1, positions[k] = k;
  for (int k = 0; k < 3; ++k) ids[8 + k] = 50 + k, segments[8 + k] = 2, positions[8 + k] = k;
  EXPECT_EQ(m.ids, ids);
  EXPECT_EQ(m.segment_ids, segments);
  EXPECT_EQ(m.positions, positions);
  EXPECT_EQ(m.hidden_index, (std::vector<int32_t>{1, 3, 8, 9}));
  EXPECT_EQ(m.sequence, (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(m.completion_position, (std::vector<int32_t>{0, 2, 0, 1}));
  EXPECT_EQ(m.temperature, (std::vector<float>{1.5F, 1.5F, 2.5F, 2.5F}));
  EXPECT_EQ(m.advantage, (std::vector<double>{1, 3, -4, -4}));
  EXPECT_EQ(m.old_logprobs, (std::vector<double>{-100, -102, -200, -201}));
  EXPECT_TRUE(m.ref_logprobs.empty() && m.rollout_logprobs.empty() && m.forced_experts.empty());
  EXPECT_EQ(m.item, (std::vector<int64_t>{0, 1}));
}

TEST_F(MicroBatchTest, SegmentsRestartInEveryRow) {
  all[0] = trajectory(1, 6, std::vector<uint8_t>(8, 1));
  advantages[0] = {1};
  const MicroBatch m = build();
  EXPECT_EQ(m.segment_ids[0], 1);
  EXPECT_EQ(m.segment_ids[16], 1);
  EXPECT_EQ(m.hidden_index.back(), 16 + 1);
}

// Rows of 70 and 31 tokens in rows of 500: computed as 2 x 128.
TEST_F(MicroBatchTest, PaddingThatNoRowNeedsIsCut) {
  all = {trajectory(1, 30, std::vector<uint8_t>(40, 1)), trajectory(2, 1, std::vector<uint8_t>(30, 1))};
  PackedMicroBatch packed;
  packed.rows = {{{{0, 0}}}, {}, {{{1, 0}}}, {}};
  options.score_all_completion_tokens = true;
  const MicroBatch m = build_micro_batch(packed, all, {}, 500, options);
  EXPECT_EQ(m.rows, 3) << "an empty row before a used one stays";
  EXPECT_EQ(m.row_length, 128);
  EXPECT_EQ(m.real_tokens, 101);
  EXPECT_EQ(m.hidden_index[39], 68);
  EXPECT_EQ(m.hidden_index[40], 2 * 128);
  const MicroBatch short_rows = build_micro_batch(packed, all, {}, 100, options);
  EXPECT_EQ(short_rows.row_length, 100) << "never longer than data.row_length";
  packed.rows = {{}, {}};
  const MicroBatch none = build_micro_batch(packed, all, {}, 500, options);
  EXPECT_EQ(none.rows, 1);
  EXPECT_EQ(none.row_length, 64);
  EXPECT_EQ(none.real_tokens, 0);
}

TEST_F(MicroBatchTest, ScoringCoversMaskedTokensAndNeedsNoAdvantages) {
  options.score_all_completion_tokens = true;
  all[1].status = TrajectoryStatus::kFailed;
  all[1].old_logprobs.clear();
  const MicroBatch m = build(false);
  EXPECT_EQ(m.scored(), 5);
  EXPECT_TRUE(m.advantage.empty());
  EXPECT_TRUE(std::isnan(m.old_logprobs[3]));
}

TEST_F(MicroBatchTest, FailedTrajectoriesAreNeverTrainedOn) {
  all[1].status = TrajectoryStatus::kAborted;
  const MicroBatch m = build();
  EXPECT_EQ(m.scored(), 2);
  EXPECT_EQ(m.sequences(), 2);
}

TEST_F(MicroBatchTest, OverlongIsTruncated) {
  all[1].status = TrajectoryStatus::kTruncated;
  EXPECT_EQ(build().overlong, (std::vector<uint8_t>{0, 1}));
}

TEST_F(MicroBatchTest, RoutingIsTransposedAndTheLastTokenMayBeMissing) {
  options.moe_layers = 2;
  options.top_k = 2;
  options.experts = 30;
  RoutedExperts routed;
  routed.tokens = 2;
  routed.layers = routed.top_k = 2;
  routed.data = {0, 1, 2, 3, 10, 11, -1, 13};
  all[1].routed_experts = routed;
  const MicroBatch m = build();
  ASSERT_EQ(m.forced_experts.size(), 2U);
  std::vector<int32_t> first(32, -1);
  std::vector<int32_t> second(32, -1);
  first[16] = 0, first[17] = 1, first[18] = 10, first[19] = 11;
  second[16] = 2, second[17] = 3, second[18] = -1, second[19] = 13;
  EXPECT_EQ(m.forced_experts[0], first);
  EXPECT_EQ(m.forced_experts[1], second);
  options.use_forced_experts = false;
  EXPECT_TRUE(build().forced_experts.empty());
}

TEST_F(MicroBatchTest, RoutingOfAnotherModelIsRefused) {
  options.moe_layers = 2;
  options.top_k = 1;
  options.experts = 8;
  options.file = "r.jsonl";
  RoutedExperts routed;
  routed.tokens = 3;
  routed.layers = 1;
  routed.top_k = 1;
  routed.data = {0, 1, 2};
  all[1].routed_experts = routed;
  const std::string shape =
      "r.jsonl:2: routed_experts.shape: 1 layers of 1 choices, expected the model's 2 layers of 1";
  EXPECT_EQ(fault([&] { check_routed_experts(all, options); }), shape);
  EXPECT_EQ(fault([&] { build(); }), shape);
  options.moe_layers = 1;
  all[1].routed_experts->data[2] = 8;
  EXPECT_EQ(fault([&] { check_routed_experts(all, options); }),
            "r.jsonl:2: routed_experts[2][0][0]: 8, expected -1 or an expert in [0, 8)");
  all[1].routed_experts->data[2] = 7;
  check_routed_experts(all, options);
  options.top_k = all[1].routed_experts->top_k = 2;
  all[1].routed_experts->data = {0, 1, -1, -1, 5, 5};
  EXPECT_EQ(fault([&] { check_routed_experts(all, options); }),
            "r.jsonl:2: routed_experts[2][0]: expert 5 twice, expected distinct experts");
}

// First completion tokens line up however many trajectories share a row, and none of a segment's first tokens
// is scored.
TEST(MicroBatch, EveryScoredTokenOnceAtItsPlaceForAnyPacking) {
  std::vector<Trajectory> all;
  for (int i = 0; i < 9; ++i) {
    all.push_back(
        trajectory(i + 1, 1 + i % 3, std::vector<uint8_t>(static_cast<size_t>(1 + i), 1), 100 * i + 1));
  }
  const std::vector<std::vector<double>> advantages(all.size(), std::vector<double>{1.0});
  for (const int64_t row_length : {12, 40, 128}) {
    for (const int64_t alignment : {1, 4}) {
      int64_t scored = 0;
      for (const auto& packed : pack_all(all, row_length, alignment)) {
        const MicroBatch m = build_micro_batch(packed, all, advantages, row_length, {});
        for (size_t i = 0; i < m.hidden_index.size(); ++i) {
          const auto at = static_cast<size_t>(m.hidden_index[i]);
          const Trajectory& t = all[static_cast<size_t>(m.item[static_cast<size_t>(m.sequence[i])])];
          const auto j = static_cast<size_t>(m.completion_position[i]);
          EXPECT_EQ(m.ids[at + 1], t.completion_ids[j]);
          EXPECT_EQ(m.old_logprobs[i], t.old_logprobs[j]);
          EXPECT_EQ(m.segment_ids[at], m.segment_ids[at + 1]);
          EXPECT_GT(m.positions[at + 1], 0);
        }
        scored += m.scored();
      }
      int64_t expected = 0;
      for (const Trajectory& t : all) expected += t.scored_tokens();
      EXPECT_EQ(scored, expected);
    }
  }
}

TEST(StepChecks, CarriedFieldsAreAllOrNone) {
  std::vector<Trajectory> all = {trajectory(3, 1, {1}), trajectory(4, 1, {1}), trajectory(6, 1, {1})};
  check_carried_fields(all, "r.jsonl");
  all[1].old_logprobs.clear();
  EXPECT_EQ(fault([&] { check_carried_fields(all, "r.jsonl"); }),
            "r.jsonl:4: old_logprobs: missing here and in 1 trajectories of the step altogether, but line 3 "
            "has it; "
            "expected all or none");
  all[1].status = TrajectoryStatus::kFailed;
  check_carried_fields(all, "r.jsonl");
}

TEST(StepChecks, GatesAndWeightsNeedRolloutLogProbs) {
  std::vector<Trajectory> all = {trajectory(1, 1, {1}), trajectory(5, 1, {1})};
  all[0].rollout_logprobs = {-1};
  GrpoConfig config;
  check_loss_fields(config, all, "r.jsonl");
  config.seq_logprob_error_threshold = 1.5;
  EXPECT_EQ(fault([&] { check_loss_fields(config, all, "r.jsonl"); }),
            "r.jsonl:5: rollout_logprobs: missing, but grpo.seq_logprob_error_threshold needs them");
  config.seq_mask_tis = true;
  EXPECT_EQ(fault([&] { check_loss_fields(config, all, "r.jsonl"); }),
            "r.jsonl:5: rollout_logprobs: missing, but grpo.truncated_importance_sampling_type: seq-mask-tis "
            "needs them");
  GrpoConfig kl;
  kl.beta = 0.04;
  EXPECT_EQ(fault([&] { check_loss_fields(kl, all, "r.jsonl"); }),
            "r.jsonl:1: ref_logprobs: missing, but grpo.beta is 0.04");
  kl.reference_initial = true;
  check_loss_fields(kl, all, "r.jsonl");
}

TEST(StepChecks, TrajectoriesLongerThanTheRow) {
  std::vector<Trajectory> all = {trajectory(1, 2, {1, 1}), trajectory(2, 3, {1, 1}),
                                 trajectory(3, 9, {1, 1, 1})};
  check_row_length(all, 12, "r.jsonl");
  EXPECT_EQ(fault([&] { check_row_length(all, 4, "r.jsonl"); }),
            "r.jsonl:2: trajectory of 5 tokens (prompt 3 + completion 2), expected at most data.row_length = "
            "4; 2 of 3 "
            "are too long, the longest has 12");
}

}  // namespace
}  // namespace lathe
