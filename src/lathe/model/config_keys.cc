#include "lathe/model/config_keys.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <nlohmann/json.hpp>

#include "lathe/core/error.h"

namespace lathe {
namespace {

using nlohmann::json;

// Keys that the reader of the sizes takes care of.
constexpr auto kDecoderKeys = std::to_array<std::string_view>({
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "rms_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "layer_types",
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "intermediate_size",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
    "attn_output_gate",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
    "router_aux_loss_coef",
    "output_router_logits",
});

// Keys about tokens, generation, bookkeeping, and the vision and MTP parts.
constexpr auto kNeutralKeys = std::to_array<std::string_view>({
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "decoder_start_token_id",
    "name_or_path",
    "auto_map",
    "chunk_size_feed_forward",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "is_encoder_decoder",
    "is_decoder",
    "add_cross_attention",
    "cross_attention_hidden_size",
    "id2label",
    "label2id",
    "problem_type",
    "tie_encoder_decoder",
    "torchscript",
    "use_bfloat16",
    "finetuning_task",
    "prefix",
    "task_specific_params",
    "tokenizer_class",
    "attn_implementation",
    "experts_implementation",
    "text_config",
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "language_model_only",
    "mamba_ssm_dtype",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "unsloth_fixed",
    "unsloth_version",
    "pruned_heads",
    "temperature",
    "top_p",
    "top_k",
    "max_length",
    "do_sample",
    "max_new_tokens",
});

// Keys that change the mathematics unless they are absent, null, or have this value (JSON text).
struct MathsKey {
  std::string_view key;
  std::string_view built;
};
constexpr auto kMathsKeys = std::to_array<MathsKey>({
    {"hidden_act", "\"silu\""},
    {"output_gate_type", "\"swish\""},
    {"attention_bias", "false"},
    {"mlp_bias", "false"},
    {"lm_head_bias", "false"},
    {"pretraining_tp", "1"},
    {"attention_dropout", "0.0"},
    {"hidden_dropout", "0.0"},
    {"hidden_dropout_prob", "0.0"},
    {"resid_pdrop", "0.0"},
    {"embd_pdrop", "0.0"},
    {"attn_logit_softcapping", "null"},
    {"final_logit_softcapping", "null"},
    {"attention_chunk_size", "null"},
    {"attention_multiplier", "null"},
    {"query_pre_attn_scalar", "null"},
    {"embedding_multiplier", "1.0"},
    {"residual_multiplier", "1.0"},
    {"logits_scaling", "1.0"},
    {"logit_scale", "1.0"},
    {"scale_emb", "1"},
    {"scale_depth", "null"},
    {"no_rope_layers", "[]"},
    {"rope_interleaved", "false"},
    {"kv_lora_rank", "null"},
    {"q_lora_rank", "null"},
    {"scoring_func", "\"softmax\""},
    {"routed_scaling_factor", "1.0"},
    {"n_group", "1"},
    {"topk_group", "1"},
    {"n_shared_experts", "0"},
    {"first_k_dense_replace", "0"},
    {"moe_layer_freq", "1"},
    {"quantization_config", "null"},
    {"compression_config", "null"},
});

template <size_t N>
bool is_in(const std::array<std::string_view, N>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

const MathsKey* find_maths_key(std::string_view key) {
  const auto* found = std::find_if(kMathsKeys.begin(), kMathsKeys.end(),
                                   [&](const MathsKey& known) { return known.key == key; });
  return found == kMathsKeys.end() ? nullptr : found;
}

std::string shortened(const json& value) {
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= 60 ? text : text.substr(0, 60) + "...";
}

class KeyChecker {
 public:
  KeyChecker(const std::string& path, std::vector<std::string>* warnings)
      : path_(path), warnings_(warnings) {}

  void check(const json& object, const std::string& at, const json* inner) const {
    for (const auto& [key, value] : object.items()) {
      if (const MathsKey* maths = find_maths_key(key); maths != nullptr) {
        check_maths(*maths, at, value);
      } else if (is_in(kDecoderKeys, key)) {
        if (inner != nullptr) check_outer_key(key, value, *inner);
      } else if (!is_in(kNeutralKeys, key) && !key.starts_with('_')) {
        warn_of(key, at, value);
      }
    }
  }

 private:
  void check_maths(const MathsKey& maths, const std::string& at, const json& value) const {
    if (value.is_null() || value == json::parse(maths.built)) return;
    if (maths.key == "output_gate_type" && value == "silu") return;
    model_error(path_,
                fmt::format("{}{}: {} is not built; {} is", at, maths.key, shortened(value),
                            maths.built == "null" ? "none" : maths.built),
                maths.key == "quantization_config" ? "use the checkpoint in bf16 or f32"
                                                   : "use another model, or another trainer");
  }

  // A decoder key beside text_config is not read, but for the two that belong to the wrapper.
  void check_outer_key(const std::string& key, const json& value, const json& inner) const {
    if (key == "model_type" || key == "tie_word_embeddings" || value.is_null()) return;
    const auto same = inner.find(key);
    if (same != inner.end() && *same == value) return;
    warn(fmt::format("{} = {} stands beside text_config and is not used; the one in text_config is", key,
                     shortened(value)));
  }

  void warn_of(const std::string& key, const std::string& at, const json& value) const {
    std::string text = fmt::format("unknown key {}{} = {} is not used", at, key, shortened(value));
    const std::string nearest = nearest_name(key, kDecoderKeys);
    if (!nearest.empty() && edit_distance(key, nearest) <= 3)
      text += fmt::format("; did you mean {}?", nearest);
    warn(text);
  }

  void warn(const std::string& text) const {
    if (warnings_ != nullptr) warnings_->push_back(path_ + ": " + text);
  }

  const std::string& path_;
  std::vector<std::string>* warnings_;
};

}  // namespace

void check_config_keys(const std::string& path, const std::string& text, std::vector<std::string>* warnings) {
  const json root = json::parse(text);
  const auto nested = root.find("text_config");
  const bool wrapped = nested != root.end() && nested->is_object();
  const KeyChecker checker(path, warnings);
  checker.check(root, "", wrapped ? &*nested : nullptr);
  if (wrapped) checker.check(*nested, "text_config.", nullptr);
}

}  // namespace lathe
