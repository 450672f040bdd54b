// Packing and masks, on whole models: what a trajectory gives does not depend on its neighbours, its place or padding.
#include "cli/field_run.h"

namespace lathe {
namespace {

// The order of sums differs between packings; log-probs of these models are of order 1 to 10.
constexpr double kRounding = 2e-4;

class FieldPacking : public FieldRun {
 protected:
  static Json masked(Json json) {
    json["completion_mask"] = std::vector<int>(json.at("completion_ids").size(), 0);
    return json;
  }
};

// One row of three, placed by decreasing length: the first one's tokens change, the others' log-probs do not by a bit. llama has attention alone,
// qwen3_5 the delta rule and its convolution too.
TEST_F(FieldPacking, ANeighboursTokensDoNotMoveABit) {
  for (const char* model : {"llama", "qwen3_5"}) {
    SCOPED_TRACE(model);
    copy(model);
    const Json second = line(ids(10, 2), ids(41, 3));
    const Json third = line(ids(4, 4), ids(36, 5));
    const Sets row{"data.row_length=192", "data.segment_alignment=1"};
    const auto before = scores({line(ids(7, 1), ids(60, 6)), second, third}, row);
    const auto after = scores({line(ids(7, 7), ids(60, 8)), second, third}, row);
    ASSERT_EQ(before.size(), 3U);
    EXPECT_NE(before[0].at("logprobs"), after[0].at("logprobs"));
    EXPECT_EQ(before[1].at("logprobs"), after[1].at("logprobs"));
    EXPECT_EQ(before[2].at("logprobs"), after[2].at("logprobs"));
    EXPECT_EQ(before[2].at("entropy"), after[2].at("entropy"));
  }
}

// The loss of the second of a row alone: embeddings of tokens that only the others have get no gradient at all.
TEST_F(FieldPacking, NoGradientReachesANeighbour) {
  for (const char* model : {"qwen3", "qwen3_5"}) {
    SCOPED_TRACE(model);
    copy(model);
    const auto in_range = [](int begin, int count) {
      Ids out;
      for (int i = 0; i < count; ++i) out.push_back(begin + i % 20);
      return out;
    };
    const Json scored = line(in_range(20, 10), in_range(30, 40), {{"advantage", 1.0}});
    const Json first = masked(line(in_range(50, 7), in_range(50, 60), {{"advantage", 1.0}}));
    const Json last = masked(line(in_range(70, 7), in_range(70, 30), {{"advantage", 1.0}}));
    run({first, scored, last}, {"data.segment_alignment=1"});
    const auto all = gradients();
    const auto table = all.find("model.embed_tokens.weight");
    ASSERT_NE(table, all.end());
    const int64_t width = table->second.shape[1];
    const auto size_of_rows = [&](int begin, int end) {
      double size = 0;
      for (int64_t i = begin * width; i < end * width; ++i) size += std::abs(table->second[i]);
      return size;
    };
    EXPECT_GT(size_of_rows(20, 40), 0);
    EXPECT_EQ(size_of_rows(50, 90), 0);
  }
}

// Alone, first and last of a row, also where it is shorter than the convolution (2 and 3 tokens).
TEST_F(FieldPacking, AloneFirstAndLastAgree) {
  copy("qwen3_5");
  for (const int length : {1, 2, 30}) {
    SCOPED_TRACE(length);
    const Json sample = line(ids(1, 2), ids(length, 3));
    const Json other = line(ids(3, 4), ids(50, 5));
    const Sets row{"data.row_length=256", "data.segment_alignment=1"};
    const Json alone = scores({sample}, row)[0].at("logprobs");
    EXPECT_LE(largest_gap(alone, scores({sample, other}, row)[0].at("logprobs")), kRounding);
    EXPECT_LE(largest_gap(alone, scores({other, other, sample}, row)[2].at("logprobs")), kRounding);
    EXPECT_EQ(alone, scores({sample}, {"data.row_length=64"})[0].at("logprobs")) << "padding after it";
  }
}

// Padding in front of a prompt: neither the convolution nor the state sees it.
TEST_F(FieldPacking, PaddingInFrontChangesNothing) {
  copy("qwen3_5");
  const Json sample = line(ids(3, 2), ids(20, 3));
  const auto at_end = scores({sample}, {"data.row_length=256"});
  const auto at_start =
      scores({sample}, {"data.row_length=256", "data.pad_position=start", "data.pad_alignment=64"});
  EXPECT_LE(largest_gap(at_end[0].at("logprobs"), at_start[0].at("logprobs")), kRounding);

  const Json train = line(ids(3, 2), ids(20, 3), {{"advantage", 1.0}});
  run({train});
  const auto expected = gradients();
  run({train}, {"data.pad_position=start", "data.pad_alignment=64"});
  EXPECT_LE(relative_gap(expected, gradients()), 1e-4);
}

// What an older policy sampled is masked: the same step as with those tokens in the prompt.
TEST_F(FieldPacking, MaskedTokensOfAnOlderPolicyOnlyCondition) {
  copy("qwen3_5");
  Ids completion = ids(150, 3);
  std::vector<int> mask(100, 0);
  mask.resize(150, 1);
  run({line(ids(5, 2), completion, {{"advantage", 1.0}, {"completion_mask", mask}, {"policy_version", 3}})});
  const auto expected = gradients();
  Ids prompt = ids(5, 2);
  prompt.insert(prompt.end(), completion.begin(), completion.begin() + 100);
  completion.erase(completion.begin(), completion.begin() + 100);
  run({line(prompt, completion, {{"advantage", 1.0}, {"policy_version", 4}})});
  EXPECT_EQ(relative_gap(expected, gradients()), 0);
}

// 8 samples with 4 or 60 targets as 1, 2 and 8 micro-batches: one step, and the same metrics but for time and packing.
TEST_F(FieldPacking, AnyCutIntoMicroBatchesIsTheSameStep) {
  std::vector<Json> lines;
  for (unsigned i = 0; i < 8; ++i) {
    lines.push_back(
        line(ids(3, 20 + i), ids(i % 2 == 0 ? 4 : 60, i), {{"advantage", i % 3 == 0 ? -1.0 : 1.5}}));
    lines.back()["rollout_logprobs"] = std::vector<double>(lines.back().at("completion_ids").size(), -3.0);
  }
  for (const char* mode :
       {"token-mean", "sequence-mean-token-mean", "seq-mean-token-sum", "sequence-mean-token-sum-norm"}) {
    SCOPED_TRACE(mode);
    const std::string aggregation = std::string("grpo.loss_agg_mode=") + mode;
    const Sets one{aggregation, "data.row_length=64", "data.rows_per_micro_batch=8", "data.max_segments=1"};
    const auto whole = run(lines, one);
    const auto expected = gradients();
    for (const char* rows : {"1", "4"}) {
      const auto cut = run(lines, {aggregation, "data.row_length=64", "data.max_segments=1",
                                   std::string("data.rows_per_micro_batch=") + rows});
      EXPECT_LE(relative_gap(expected, gradients()), 1e-5);
      ASSERT_EQ(cut.size(), 1U);
      for (const auto& [key, value] : whole[0].items()) {
        const bool of_the_loss = key.rfind("policy/", 0) == 0 || key.rfind("mismatch/", 0) == 0 ||
                                 key.rfind("adv/", 0) == 0 || key.rfind("data/", 0) == 0 ||
                                 key == "optim/grad_norm";
        if (!of_the_loss || key == "data/epoch") continue;
        EXPECT_NEAR(cut[0].at(key).get<double>(), value.get<double>(),
                    1e-4 * (1 + std::abs(value.get<double>())))
            << key;
      }
    }
    // Packed into one row as well.
    run(lines, {aggregation, "data.row_length=512", "data.segment_alignment=1"});
    EXPECT_LE(relative_gap(expected, gradients()), 1e-5);
  }
}

TEST_F(FieldPacking, AMicroBatchWithoutAScoredTokenAddsNothing) {
  std::vector<Json> lines;
  for (unsigned i = 0; i < 4; ++i) lines.push_back(line(ids(3, i), ids(20, 9 + i), {{"advantage", 1.0}}));
  lines[2] = masked(lines[2]);
  const auto metrics = run(lines, {"data.row_length=64", "data.max_segments=1"});
  EXPECT_EQ(metrics[0].at("pack/micro_batches"), 4);
  for (const auto& [key, value] : metrics[0].items()) {
    const bool of_rewards = key.rfind("reward/", 0) == 0;  // there are none
    EXPECT_EQ(value.is_null(), of_rewards) << key;
  }
  const auto with = gradients();
  lines.erase(lines.begin() + 2);
  run(lines, {"data.row_length=64", "data.max_segments=1"});
  EXPECT_LE(relative_gap(gradients(), with), 1e-6);
}

}  // namespace
}  // namespace lathe
