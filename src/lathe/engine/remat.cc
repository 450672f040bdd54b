// Which layers keep what backward needs, and which recompute it from their input.
#include <algorithm>

#include "lathe/engine/engine.h"

namespace lathe {
namespace {

int64_t attention_elements(const ModelConfig& c) {
  const int64_t q = c.num_attention_heads * c.head_dim;
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  return q * (c.attn_output_gate ? 2 : 1) + 2 * kv + q + kv + q + 2 * c.num_attention_heads +
         c.num_key_value_heads;
}

int64_t delta_elements(const ModelConfig& c, int64_t chunk) {
  const int64_t keys = 2 * c.linear_num_key_heads * c.linear_key_head_dim;
  const int64_t states = c.linear_value_dim() * c.linear_key_head_dim / chunk;
  return 2 * c.linear_mixed_dim() + 3 * c.linear_value_dim() + keys + 5 * c.linear_num_value_heads + states;
}

int64_t mlp_elements(const ModelConfig& c, MlpKind kind) {
  if (kind == MlpKind::kDense) return 2 * c.intermediate_size;
  return c.num_experts + c.num_experts_per_tok * (4 + c.hidden_size + 2 * c.moe_intermediate_size) +
         2 * c.shared_expert_intermediate_size + 1;
}

// Bytes a layer keeps under `none` beyond its input: the tensors of LayerSaved.
int64_t kept_bytes(const ModelConfig& c, LayerKind kind, int64_t tokens, int64_t chunk, int64_t element) {
  const int64_t mixer =
      kind.mixer == MixerKind::kFullAttention ? attention_elements(c) : delta_elements(c, chunk);
  return tokens * element * (3 * c.hidden_size + 2 + mixer + mlp_elements(c, kind.mlp));
}

}  // namespace

void Engine::plan_remat(int64_t rows, int64_t row_length) {
  const auto layers = config_.layers.size();
  keep_all_.assign(layers, options_.remat == RematPolicy::kNone);
  if (options_.remat != RematPolicy::kAuto) {
    remat_choice_ = options_.remat == RematPolicy::kNone ? "none" : "full";
    return;
  }
  const int64_t tokens = rows * row_length;
  const int64_t element = dtype_size(device_.float_type());
  int64_t largest = 0;
  for (const LayerKind& kind : config_.layers) {
    largest = std::max(largest, kept_bytes(config_, kind, tokens, options_.delta_rule_chunk, element));
  }
  // Always there: weights, gradients, optimizer; layer inputs; a layer at work (what it keeps, and as much again for its
  // gradients); a chunk of logits.
  const int64_t inputs = tokens * config_.hidden_size * element * static_cast<int64_t>(layers + 2);
  const int64_t logits = std::min(options_.head_chunk, tokens) * config_.vocab_size * element;
  int64_t left = options_.memory_budget - device_.memory->live().total() - inputs - logits - 2 * largest;
  int64_t kept = 0;
  for (size_t i = layers; i-- > 0;) {  // the last layers are the first to be needed again
    const int64_t bytes = kept_bytes(config_, config_.layers[i], tokens, options_.delta_rule_chunk, element);
    if (bytes > left) break;
    left -= bytes;
    keep_all_[i] = true;
    ++kept;
  }
  remat_choice_ = kept == static_cast<int64_t>(layers) ? "none"
                  : kept == 0                          ? "full"
                                                       : fmt::format("full for the first {} of {} layers",
                                                                     static_cast<int64_t>(layers) - kept, layers);
  log_.info("remat.policy auto: {} (memory budget {:.2f} GiB)", remat_choice_,
            static_cast<double>(options_.memory_budget) / (1 << 30));
}

}  // namespace lathe
