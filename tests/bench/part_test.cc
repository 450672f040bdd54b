#include "lathe/bench/part.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/bench/measure.h"
#include "lathe/bench/step.h"
#include "lathe/kernels/fused_log_prob.h"

namespace lathe {
namespace {

PartOptions quick() {
  return {.threads = 2, .isa = chosen_isa(), .dtype = DType::kF32, .repeats = 1};
}

AttentionSizes small_attention() {
  return {.tokens = 70, .heads = 4, .kv_heads = 2, .head_dim = 16, .segments = 3};
}
DeltaRuleSizes small_rule() {
  return {.tokens = 90,
          .key_heads = 2,
          .value_heads = 4,
          .key_dim = 16,
          .value_dim = 8,
          .chunk = 64,
          .segments = 2};
}
MoeSizes small_moe() {
  return {.tokens = 40, .dim = 24, .experts = 5, .top_k = 2, .width = 16, .shared_width = 8};
}

HeadSizes small_head(HeadMode mode, bool known) {
  return {.tokens = 50,
          .dim = 24,
          .vocab = 700,
          .mode = mode,
          .known = known,
          .chunk = 16,
          .scored = 0.5,
          .entropy_gradient = true};
}

TEST(BenchPart, EveryPartIsVerifiedAndTimed) {
  for (const PartSpec& spec : {attention_part(small_attention()), delta_rule_part(small_rule()),
                               moe_part(small_moe(), DType::kF32)}) {
    const PartReport report = run_part(spec, quick());
    EXPECT_TRUE(report.verified) << spec.name << ": " << report.fault;
    EXPECT_GT(report.forward_s, 0);
    EXPECT_GE(report.backward_s, 0);
    EXPECT_GT(report.gemm_s, 0);
    EXPECT_GT(report.ratio_to_gemm(), 0);
  }
}

TEST(BenchPart, FlopsAreThoseOfTheModelAccount) {
  // 12 per pair, head and element; 18 per token, head and element of the state.
  EXPECT_EQ(attention_part({.tokens = 8, .heads = 2, .kv_heads = 1, .head_dim = 4, .segments = 2}).flops,
            12.0 * 2 * (4 * 5 / 2) * 2 * 4);
  EXPECT_EQ(delta_rule_part(small_rule()).flops, 18.0 * 90 * 4 * 16 * 8);
  EXPECT_EQ(moe_part(small_moe(), DType::kF32).flops, 6.0 * 40 * 24 * (3 * (2 * 16 + 8) + 5));
}

TEST(BenchPart, MemoryIsWhatThePartAllocates) {
  const PartReport attention = run_part(attention_part(small_attention()), quick());
  EXPECT_EQ(attention.kept_bytes, 70 * 4 * 4) << "lse";
  EXPECT_EQ(attention.peak_extra_bytes, 2 * 70 * 4 * 4) << "lse and delta";
  const PartReport rule = run_part(delta_rule_part(small_rule()), quick());
  EXPECT_EQ(rule.kept_bytes, 2 * 4 * 16 * 8 * 4) << "the state entering each of two chunks";
}

TEST(BenchPart, TheHeadKeepsEightBytesATokenOrNothing) {
  const PartReport two_pass = run_part(head_part(small_head(HeadMode::kFused, false), DType::kF32), quick());
  EXPECT_EQ(two_pass.kept_bytes, 25 * 8);
  EXPECT_EQ(two_pass.flops, 8.0 * 25 * 24 * 700);
  const PartReport known = run_part(head_part(small_head(HeadMode::kFused, true), DType::kF32), quick());
  EXPECT_EQ(known.kept_bytes, 0);
  EXPECT_EQ(known.flops, 6.0 * 25 * 24 * 700);
}

// A part whose fast path is wrong by a little in one gradient.
class Spoiled final : public Part {
 public:
  Spoiled(Device& device, std::unique_ptr<Part> inner) : device_(device), inner_(std::move(inner)) {}
  void forward() override { inner_->forward(); }
  void backward() override {
    inner_->backward();
    if (device_.options.name != "cpu") return;
    const ConstView view = inner_->results().back().second;
    std::vector<double> values = host_values(device_, view);
    std::vector<float> spoiled(values.begin(), values.end());
    for (float& x : spoiled) x *= 1.001F;
    device_.memory->copy_from_host(View(const_cast<std::byte*>(view.data), view.dtype, view.shape),
                                   spoiled.data());
  }
  [[nodiscard]] std::vector<std::pair<std::string, ConstView>> results() const override {
    return inner_->results();
  }

 private:
  Device& device_;
  std::unique_ptr<Part> inner_;
};

TEST(BenchPart, WhatDiffersFromTheReferenceIsNotTimed) {
  PartSpec spec = attention_part(small_attention());
  spec.make = [make = spec.make](Device& device, bool small) -> std::unique_ptr<Part> {
    return std::make_unique<Spoiled>(device, make(device, small));
  };
  const PartReport report = run_part(spec, quick());
  EXPECT_FALSE(report.verified);
  EXPECT_EQ(report.fault, "dv is 0.001 from the reference, expected at most 0.0002");
  EXPECT_EQ(report.forward_s, 0);
  const auto json = nlohmann::json::parse(report_json(report));
  EXPECT_EQ(json.at("verified"), false);
  EXPECT_FALSE(json.contains("forward_s"));
}

// Beside the small slice: more than one block of tokens, scored or not, and rows wider than what a product takes at once.
TEST(BenchPart, TheHeadIsVerifiedOverSeveralBlocksAndWideRows) {
  Device plan({.name = "plan", .threads = 1, .isa = Isa::kAvx2, .poison = false, .float_type = DType::kF32});
  for (const double scored : {1.0, 0.5}) {
    const HeadSizes sizes{.tokens = 4096, .dim = 4096, .vocab = 32768, .scored = scored};
    int64_t most_scored = 0;
    int64_t widest = 0;
    for (const auto& make : head_part(sizes, DType::kF32).also_checked) {
      for (const auto& [name, view] : make(plan)->results()) {
        if (name == "logp") most_scored = std::max(most_scored, view.dim(0));
        if (name == "dhidden") widest = std::max(widest, view.dim(1));
      }
    }
    EXPECT_GT(most_scored, kHeadTileTokens);
    EXPECT_GT(widest, 1024);
  }
}

TEST(BenchPart, ALaterCheckThatFailsIsAFault) {
  HeadSizes sizes = small_head(HeadMode::kFused, false);
  for (const size_t spoiled : {0, 1}) {
    PartSpec spec = head_part(sizes, DType::kF32);
    auto& make = spec.also_checked.at(spoiled);
    make = [make](Device& device) -> std::unique_ptr<Part> {
      return std::make_unique<Spoiled>(device, make(device));
    };
    EXPECT_EQ(run_part(spec, quick()).fault, "dtable is 0.001 from the reference, expected at most 0.0002");
  }
}

TEST(BenchPart, JsonHasTheKeysOfEveryPart) {
  const auto json = nlohmann::json::parse(report_json(run_part(attention_part(small_attention()), quick())));
  for (const char* key : {"tokens", "dtype", "forward_s", "backward_s", "gemm_s", "ratio_to_gemm", "flops",
                          "peak_extra_bytes", "kept_bytes", "verified", "isa", "threads"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
}

TEST(BenchStep, IsVerifiedAndCountsRealTokens) {
  StepBenchOptions options;
  options.config_path = std::string(LATHE_GOLDENS) + "/qwen3_5_moe/model";
  options.tokens = 200;
  options.row_length = 256;
  options.threads = 2;
  options.isa = chosen_isa();
  options.repeats = 1;
  const StepBenchReport report = bench_step(options);
  EXPECT_TRUE(report.verified) << report.fault;
  EXPECT_GE(report.tokens, 200);
  EXPECT_GE(report.computed_tokens, report.tokens);
  EXPECT_LT(report.scored_tokens, report.tokens);
  EXPECT_GT(report.ratio_to_gemm(), 0);
  const auto json = nlohmann::json::parse(report_json(report));
  EXPECT_EQ(json.at("tokens"), report.tokens);
  EXPECT_EQ(json.at("verified"), true);
}

}  // namespace
}  // namespace lathe
