#include "lathe/model/flops.h"

#include <array>

#include <gtest/gtest.h>

namespace lathe {
namespace {

ModelConfig config() {
  ModelConfig c;
  c.vocab_size = 11;
  c.hidden_size = 4;
  c.layers = {{MixerKind::kFullAttention, MlpKind::kDense}, {MixerKind::kLinearAttention, MlpKind::kMoe}};
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.head_dim = 3;
  c.attn_output_gate = true;
  c.linear_num_key_heads = 1;
  c.linear_num_value_heads = 2;
  c.linear_key_head_dim = 3;
  c.linear_value_head_dim = 5;
  c.intermediate_size = 7;
  c.num_experts = 6;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 8;
  c.shared_expert_intermediate_size = 9;
  return c;
}

TEST(ModelFlops, CountsTheMatricesATokenUses) {
  const int64_t attention = 4 * (6 * 3 + 2 * 3);  // q with gate and o; k, v
  const int64_t dense = 3 * 4 * 7;
  const int64_t delta = 4 * (2 * 3 + 10 + 10 + 10 + 4);       // qkv, z, out, b and a
  const int64_t moe = 4 * 6 + 3 * 4 * 8 * 2 + 3 * 4 * 9 + 4;  // router, two experts, shared expert, its gate
  EXPECT_EQ(active_matrix_parameters(config()), attention + dense + delta + moe);
}

TEST(ModelFlops, AddsTheHeadAtScoredPositionsAndThePairsOfEachDocument) {
  const ModelConfig c = config();
  const std::array<int64_t, 2> lengths{3, 5};
  const double matrices = 6.0 * static_cast<double>(active_matrix_parameters(c)) * 8;
  const double head = 6.0 * 11 * 4 * 6;
  const double pairs = 12.0 * 6 * (6 + 15);
  const double delta = 18.0 * 2 * 3 * 5 * 8;
  EXPECT_DOUBLE_EQ(model_flops(c, lengths, 6), matrices + head + pairs + delta);
}

}  // namespace
}  // namespace lathe
