#include "lathe/model/flops.h"

namespace lathe {

int64_t active_matrix_parameters(const ModelConfig& c) {
  int64_t total = 0;
  for (const LayerKind& layer : c.layers) {
    if (layer.mixer == MixerKind::kFullAttention) {
      const int64_t q = c.num_attention_heads * c.head_dim;
      const int64_t kv = c.num_key_value_heads * c.head_dim;
      total += c.hidden_size * (q * (c.attn_output_gate ? 3 : 2) + 2 * kv);
    } else {
      total +=
          c.hidden_size * (c.linear_mixed_dim() + 2 * c.linear_value_dim() + 2 * c.linear_num_value_heads);
    }
    if (layer.mlp == MlpKind::kDense) {
      total += 3 * c.hidden_size * c.intermediate_size;
    } else {
      total += c.hidden_size * c.num_experts;
      total += 3 * c.hidden_size * c.moe_intermediate_size * c.num_experts_per_tok;
      total += 3 * c.hidden_size * c.shared_expert_intermediate_size;
      if (c.shared_expert_intermediate_size > 0) total += c.hidden_size;
    }
  }
  return total;
}

double model_flops(const ModelConfig& c, std::span<const int64_t> lengths, int64_t scored_tokens) {
  double tokens = 0;
  double pairs = 0;
  for (const int64_t n : lengths) {
    tokens += static_cast<double>(n);
    pairs += static_cast<double>(n) * static_cast<double>(n + 1) / 2;
  }
  double attention_layers = 0;
  double delta_layers = 0;
  for (const LayerKind& layer : c.layers) {
    (layer.mixer == MixerKind::kFullAttention ? attention_layers : delta_layers) += 1;
  }
  // Scores and values: two products of head_dim forward, four backward, for each head and pair; 2 FLOPs a multiply-add.
  const double attention =
      12.0 * static_cast<double>(c.num_attention_heads * c.head_dim) * pairs * attention_layers;
  // Token recurrence: S^T k, k e^T, S^T q, each key_dim x value_dim multiply-adds; backward twice that.
  const double delta = 18.0 * static_cast<double>(c.linear_num_value_heads * c.linear_key_head_dim) *
                       static_cast<double>(c.linear_value_head_dim) * tokens * delta_layers;
  const double matrices = 6.0 * static_cast<double>(active_matrix_parameters(c)) * tokens;
  const double head =
      6.0 * static_cast<double>(c.vocab_size * c.hidden_size) * static_cast<double>(scored_tokens);
  return matrices + head + attention + delta;
}

}  // namespace lathe
