// The decoder's architecture, as read from a Hugging Face config.json; the same struct for every family.
// Families: llama, qwen3, qwen3_moe, qwen3_next, qwen3_5 (dense hybrid), qwen3_5_moe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

enum class MixerKind : uint8_t { kFullAttention, kLinearAttention };
enum class MlpKind : uint8_t { kDense, kMoe };

struct LayerKind {
  MixerKind mixer = MixerKind::kFullAttention;
  MlpKind mlp = MlpKind::kDense;
};

struct ModelConfig {
  std::string family;    // llama, qwen3, ...
  bool wrapped = false;  // a vision-language wrapper with the decoder in text_config
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  std::vector<LayerKind> layers;
  double rms_norm_eps = 1e-6;
  double norm_offset = 0;  // 1 in the (1 + w) families
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  int64_t max_position_embeddings = 0;

  // full attention
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  double rope_theta = 10000;
  bool qk_norm = false;
  bool attn_output_gate = false;

  // gated delta rule
  int64_t linear_num_key_heads = 0;
  int64_t linear_num_value_heads = 0;
  int64_t linear_key_head_dim = 0;
  int64_t linear_value_head_dim = 0;
  int64_t linear_conv_kernel_dim = 4;

  // dense MLP, mixture of experts
  int64_t intermediate_size = 0;
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert
  bool norm_topk_prob = true;

  [[nodiscard]] int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  [[nodiscard]] int64_t num_moe_layers() const;
  // Channels of the convolution: [q | k | v].
  [[nodiscard]] int64_t linear_mixed_dim() const {
    return 2 * linear_num_key_heads * linear_key_head_dim + linear_num_value_heads * linear_value_head_dim;
  }
  [[nodiscard]] int64_t linear_value_dim() const { return linear_num_value_heads * linear_value_head_dim; }
};

// Reads <folder>/config.json. Model errors (exit 4): missing or unreadable, family not built, or a value that
// asks for mathematics that is not implemented (named with its value). `warnings` receives unknown keys.
[[nodiscard]] ModelConfig read_model_config(const std::string& path, std::vector<std::string>* warnings);

}  // namespace lathe
