#include "lathe/model/parameters.h"

#include <set>
#include <string_view>
#include <utility>

#include "lathe/core/error.h"

namespace lathe {
namespace {

const char* role_name(ParameterRole role) {
  switch (role) {
    case ParameterRole::kEmbedding:
      return "embedding";
    case ParameterRole::kInputNorm:
      return "input_norm";
    case ParameterRole::kPostAttentionNorm:
      return "post_attention_norm";
    case ParameterRole::kQProj:
      return "q_proj";
    case ParameterRole::kKProj:
      return "k_proj";
    case ParameterRole::kVProj:
      return "v_proj";
    case ParameterRole::kOProj:
      return "o_proj";
    case ParameterRole::kQNorm:
      return "q_norm";
    case ParameterRole::kKNorm:
      return "k_norm";
    case ParameterRole::kInProjQkv:
      return "in_proj_qkv";
    case ParameterRole::kInProjZ:
      return "in_proj_z";
    case ParameterRole::kInProjBa:
      return "in_proj_ba";
    case ParameterRole::kConv:
      return "conv";
    case ParameterRole::kALog:
      return "a_log";
    case ParameterRole::kDtBias:
      return "dt_bias";
    case ParameterRole::kGatedNorm:
      return "gated_norm";
    case ParameterRole::kOutProj:
      return "out_proj";
    case ParameterRole::kGateUp:
      return "gate_up";
    case ParameterRole::kDown:
      return "down";
    case ParameterRole::kRouter:
      return "router";
    case ParameterRole::kExpertsGateUp:
      return "experts_gate_up";
    case ParameterRole::kExpertsDown:
      return "experts_down";
    case ParameterRole::kSharedGateUp:
      return "shared_gate_up";
    case ParameterRole::kSharedDown:
      return "shared_down";
    case ParameterRole::kSharedGate:
      return "shared_gate";
    case ParameterRole::kFinalNorm:
      return "final_norm";
    case ParameterRole::kLmHead:
      return "lm_head";
  }
  return "?";
}

class LayoutBuilder {
 public:
  LayoutBuilder(const ModelConfig& config, const HfNaming& naming) : config_(config), naming_(naming) {}

  ParameterLayout build() {
    const int64_t hidden = config_.hidden_size;
    whole(ParameterRole::kEmbedding, {config_.vocab_size, hidden}, naming_.prefix + "embed_tokens.weight",
          "[vocab_size, hidden_size]");
    for (layer_ = 0; layer_ < static_cast<int>(config_.num_layers()); ++layer_) add_layer();
    layer_ = -1;
    whole(ParameterRole::kFinalNorm, {hidden}, naming_.prefix + "norm.weight", "[hidden_size]");
    if (!config_.tie_word_embeddings) {
      whole(ParameterRole::kLmHead, {config_.vocab_size, hidden}, naming_.head, "[vocab_size, hidden_size]");
    }
    return std::move(layout_);
  }

 private:
  void add_layer() {
    const LayerKind& kind = config_.layers[static_cast<size_t>(layer_)];
    base_ = fmt::format("{}layers.{}.", naming_.prefix, layer_);
    whole(ParameterRole::kInputNorm, {config_.hidden_size}, base_ + "input_layernorm.weight",
          "[hidden_size]");
    if (kind.mixer == MixerKind::kFullAttention) {
      add_attention();
    } else {
      add_linear_attention();
    }
    whole(ParameterRole::kPostAttentionNorm, {config_.hidden_size}, base_ + "post_attention_layernorm.weight",
          "[hidden_size]");
    if (kind.mlp == MlpKind::kDense) {
      add_mlp(ParameterRole::kGateUp, ParameterRole::kDown, base_ + "mlp.", config_.intermediate_size,
              "[intermediate_size, hidden_size]", "[hidden_size, intermediate_size]");
    } else {
      add_moe();
    }
  }

  void add_attention() {
    const std::string at = base_ + "self_attn.";
    const int64_t hidden = config_.hidden_size;
    const int64_t q_dim = config_.num_attention_heads * config_.head_dim;
    const int64_t kv_dim = config_.num_key_value_heads * config_.head_dim;
    const bool gate = config_.attn_output_gate;
    whole(ParameterRole::kQProj, {gate ? 2 * q_dim : q_dim, hidden}, at + "q_proj.weight",
          gate ? "[2 * num_attention_heads * head_dim, hidden_size]"
               : "[num_attention_heads * head_dim, hidden_size]");
    const char* kv_keys = "[num_key_value_heads * head_dim, hidden_size]";
    whole(ParameterRole::kKProj, {kv_dim, hidden}, at + "k_proj.weight", kv_keys);
    whole(ParameterRole::kVProj, {kv_dim, hidden}, at + "v_proj.weight", kv_keys);
    whole(ParameterRole::kOProj, {hidden, q_dim}, at + "o_proj.weight",
          "[hidden_size, num_attention_heads * head_dim]");
    if (!config_.qk_norm) return;
    whole(ParameterRole::kQNorm, {config_.head_dim}, at + "q_norm.weight", "[head_dim]");
    whole(ParameterRole::kKNorm, {config_.head_dim}, at + "k_norm.weight", "[head_dim]");
  }

  void add_linear_attention() {
    const std::string at = base_ + "linear_attn.";
    const int64_t value_heads = config_.linear_num_value_heads;
    const int64_t taps = config_.linear_conv_kernel_dim;
    const int64_t mixed = config_.linear_mixed_dim();
    if (config_.family == "qwen3_next") {
      add_grouped_projections(at);
    } else {
      add_split_projections(at);
    }
    tensor(at + "conv1d.weight", {mixed, 1, taps},
           "[2 * linear_num_key_heads * linear_key_head_dim + linear_num_value_heads * "
           "linear_value_head_dim, 1, "
           "linear_conv_kernel_dim]");
    add(ParameterRole::kConv, {mixed, taps}, taps, {{at + "conv1d.weight", 0, 0, mixed}});
    whole(ParameterRole::kALog, {value_heads}, at + "A_log", "[linear_num_value_heads]");
    whole(ParameterRole::kDtBias, {value_heads}, at + "dt_bias", "[linear_num_value_heads]");
    whole(ParameterRole::kGatedNorm, {config_.linear_value_head_dim}, at + "norm.weight",
          "[linear_value_head_dim]");
    whole(ParameterRole::kOutProj, {config_.hidden_size, config_.linear_value_dim()}, at + "out_proj.weight",
          "[hidden_size, linear_num_value_heads * linear_value_head_dim]");
  }

  void add_split_projections(const std::string& at) {
    const int64_t hidden = config_.hidden_size;
    const int64_t value_heads = config_.linear_num_value_heads;
    whole(ParameterRole::kInProjQkv, {config_.linear_mixed_dim(), hidden}, at + "in_proj_qkv.weight",
          "[2 * linear_num_key_heads * linear_key_head_dim + linear_num_value_heads * linear_value_head_dim, "
          "hidden_size]");
    whole(ParameterRole::kInProjZ, {config_.linear_value_dim(), hidden}, at + "in_proj_z.weight",
          "[linear_num_value_heads * linear_value_head_dim, hidden_size]");
    for (const char* name : {"in_proj_b.weight", "in_proj_a.weight"}) {
      tensor(at + name, {value_heads, hidden}, "[linear_num_value_heads, hidden_size]");
    }
    add(ParameterRole::kInProjBa, {2 * value_heads, hidden}, hidden,
        {{at + "in_proj_b.weight", 0, 0, value_heads},
         {at + "in_proj_a.weight", 0, value_heads, value_heads}});
  }

  // qwen3_next: per key head g a block of rows [q | k | v of its value heads | z of its value heads], and [b
  // | a].
  void add_grouped_projections(const std::string& at) {
    const int64_t hidden = config_.hidden_size;
    const int64_t groups = config_.linear_num_key_heads;
    const int64_t key_dim = config_.linear_key_head_dim;
    const int64_t ratio = config_.linear_num_value_heads / groups;
    const int64_t values = ratio * config_.linear_value_head_dim;  // rows of v, and of z, in a group
    const int64_t block = 2 * key_dim + 2 * values;
    const std::string qkvz = at + "in_proj_qkvz.weight";
    const std::string ba = at + "in_proj_ba.weight";
    tensor(qkvz, {groups * block, hidden},
           "[2 * linear_num_key_heads * linear_key_head_dim + 2 * linear_num_value_heads * "
           "linear_value_head_dim, "
           "hidden_size]");
    tensor(ba, {2 * groups * ratio, hidden}, "[2 * linear_num_value_heads, hidden_size]");
    std::vector<HfSlice> qkv_slices;
    std::vector<HfSlice> z_slices;
    std::vector<HfSlice> ba_slices;
    for (int64_t g = 0; g < groups; ++g) {
      qkv_slices.push_back({qkvz, g * block, g * key_dim, key_dim});
      qkv_slices.push_back({qkvz, g * block + key_dim, (groups + g) * key_dim, key_dim});
      qkv_slices.push_back({qkvz, g * block + 2 * key_dim, 2 * groups * key_dim + g * values, values});
      z_slices.push_back({qkvz, g * block + 2 * key_dim + values, g * values, values});
      ba_slices.push_back({ba, 2 * g * ratio, g * ratio, ratio});
      ba_slices.push_back({ba, (2 * g + 1) * ratio, (groups + g) * ratio, ratio});
    }
    add(ParameterRole::kInProjQkv, {config_.linear_mixed_dim(), hidden}, hidden, std::move(qkv_slices));
    add(ParameterRole::kInProjZ, {config_.linear_value_dim(), hidden}, hidden, std::move(z_slices));
    add(ParameterRole::kInProjBa, {2 * groups * ratio, hidden}, hidden, std::move(ba_slices));
  }

  void add_mlp(ParameterRole gate_up, ParameterRole down, const std::string& at, int64_t width,
               const char* in_keys, const char* out_keys) {
    const int64_t hidden = config_.hidden_size;
    for (const char* name : {"gate_proj.weight", "up_proj.weight"})
      tensor(at + name, {width, hidden}, in_keys);
    add(gate_up, {2 * width, hidden}, hidden,
        {{at + "gate_proj.weight", 0, 0, width}, {at + "up_proj.weight", 0, width, width}});
    whole(down, {hidden, width}, at + "down_proj.weight", out_keys);
  }

  void add_moe() {
    const std::string at = base_ + "mlp.";
    whole(ParameterRole::kRouter, {config_.num_experts, config_.hidden_size}, at + "gate.weight",
          "[num_experts, hidden_size]");
    const auto own = naming_.layers.find(layer_);
    const bool fused_gate_up =
        own != naming_.layers.end() ? own->second.fused_gate_up : naming_.fused_experts;
    const bool fused_down = own != naming_.layers.end() ? own->second.fused_down : naming_.fused_experts;
    add_experts_gate_up(at + "experts.", fused_gate_up);
    add_experts_down(at + "experts.", fused_down);
    if (config_.shared_expert_intermediate_size == 0) return;
    add_mlp(ParameterRole::kSharedGateUp, ParameterRole::kSharedDown, at + "shared_expert.",
            config_.shared_expert_intermediate_size, "[shared_expert_intermediate_size, hidden_size]",
            "[hidden_size, shared_expert_intermediate_size]");
    whole(ParameterRole::kSharedGate, {1, config_.hidden_size}, at + "shared_expert_gate.weight",
          "[1, hidden_size]");
  }

  void add_experts_gate_up(const std::string& at, bool fused) {
    const int64_t hidden = config_.hidden_size;
    const int64_t width = config_.moe_intermediate_size;
    const Shape shape{config_.num_experts, 2 * width, hidden};
    if (fused) {
      whole(ParameterRole::kExpertsGateUp, shape, at + "gate_up_proj",
            "[num_experts, 2 * moe_intermediate_size, hidden_size]");
      return;
    }
    std::vector<HfSlice> slices;
    for (int64_t e = 0; e < config_.num_experts; ++e) {
      int64_t row = e * 2 * width;
      for (const char* name : {"gate_proj", "up_proj"}) {
        const std::string expert = fmt::format("{}{}.{}.weight", at, e, name);
        tensor(expert, {width, hidden}, "[moe_intermediate_size, hidden_size]");
        slices.push_back({expert, 0, row, width});
        row += width;
      }
    }
    add(ParameterRole::kExpertsGateUp, shape, hidden, std::move(slices));
  }

  void add_experts_down(const std::string& at, bool fused) {
    const int64_t hidden = config_.hidden_size;
    const int64_t width = config_.moe_intermediate_size;
    const Shape shape{config_.num_experts, hidden, width};
    if (fused) {
      whole(ParameterRole::kExpertsDown, shape, at + "down_proj",
            "[num_experts, hidden_size, moe_intermediate_size]");
      return;
    }
    std::vector<HfSlice> slices;
    for (int64_t e = 0; e < config_.num_experts; ++e) {
      const std::string expert = fmt::format("{}{}.down_proj.weight", at, e);
      tensor(expert, {hidden, width}, "[hidden_size, moe_intermediate_size]");
      slices.push_back({expert, 0, e * hidden, hidden});
    }
    add(ParameterRole::kExpertsDown, shape, width, std::move(slices));
  }

  void tensor(const std::string& name, const Shape& shape, const char* keys) {
    layout_.hf_tensors.emplace(name, shape);
    layout_.shape_keys.emplace(name, keys);
  }

  void add(ParameterRole role, const Shape& shape, int64_t row_elements, std::vector<HfSlice> slices) {
    ParameterSpec spec;
    spec.role = role;
    spec.layer = layer_;
    spec.shape = shape;
    spec.row_elements = row_elements;
    spec.slices = std::move(slices);
    layout_.parameters.push_back(std::move(spec));
  }

  // A parameter that is one tensor of the file. Vectors are one row.
  void whole(ParameterRole role, const Shape& shape, const std::string& name, const char* keys) {
    tensor(name, shape, keys);
    const int64_t row_elements = shape[shape.rank() - 1];
    add(role, shape, row_elements, {{name, 0, 0, shape.size() / row_elements}});
  }

  const ModelConfig& config_;
  const HfNaming& naming_;
  ParameterLayout layout_;
  std::string base_;
  int layer_ = -1;
};

}  // namespace

bool ParameterSpec::is_matrix() const {
  switch (role) {
    case ParameterRole::kInputNorm:
    case ParameterRole::kPostAttentionNorm:
    case ParameterRole::kQNorm:
    case ParameterRole::kKNorm:
    case ParameterRole::kConv:
    case ParameterRole::kALog:
    case ParameterRole::kDtBias:
    case ParameterRole::kGatedNorm:
    case ParameterRole::kFinalNorm:
      return false;
    default:
      return true;
  }
}

std::string ParameterSpec::name() const {
  return layer < 0 ? role_name(role) : fmt::format("layers.{}.{}", layer, role_name(role));
}

std::vector<std::string> ParameterSpec::hf_names() const {
  std::vector<std::string> names;
  std::set<std::string_view> seen;
  for (const HfSlice& slice : slices) {
    if (seen.insert(slice.tensor).second) names.push_back(slice.tensor);
  }
  return names;
}

HfNaming usual_naming(const ModelConfig& config) {
  HfNaming naming;
  naming.prefix = config.wrapped ? "model.language_model." : "model.";
  naming.fused_experts = config.family == "qwen3_5_moe";
  return naming;
}

ParameterLayout layout_from_names(const ModelConfig& config, const HfNaming& naming) {
  return LayoutBuilder(config, naming).build();
}

int64_t parameter_count(const ModelConfig& config) {
  HfNaming naming;
  naming.fused_experts = true;
  int64_t count = 0;
  for (const ParameterSpec& spec : layout_from_names(config, naming).parameters) count += spec.shape.size();
  return count;
}

int64_t active_parameter_count(const ModelConfig& config) {
  HfNaming naming;
  naming.fused_experts = true;
  int64_t count = 0;
  for (const ParameterSpec& spec : layout_from_names(config, naming).parameters) {
    const bool experts =
        spec.role == ParameterRole::kExpertsGateUp || spec.role == ParameterRole::kExpertsDown;
    if (spec.role == ParameterRole::kEmbedding && !config.tie_word_embeddings) continue;
    count +=
        experts ? spec.shape.size() / config.num_experts * config.num_experts_per_tok : spec.shape.size();
  }
  return count;
}

const ParameterSpec* find_parameter(const ParameterLayout& layout, ParameterRole role, int layer) {
  for (const ParameterSpec& spec : layout.parameters) {
    if (spec.role == role && spec.layer == layer) return &spec;
  }
  return nullptr;
}

}  // namespace lathe
