#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/io/files.h"
#include "lathe/model/config.h"
#include "lathe/model/config_families.h"
#include "lathe/model/config_keys.h"
#include "lathe/model/config_size.h"

namespace lathe {
namespace {

using nlohmann::json;

// Largest values taken: beyond any model, and small enough that no product of them overflows 64 bits.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 26;
constexpr int64_t kMaxCount = int64_t{1} << 15;  // layers, heads, experts
// What the kernels' tiles hold.
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxDeltaRuleDim = 384;
constexpr int64_t kMaxConvTaps = 16;

class ConfigReader {
 public:
  ConfigReader(std::string path, const json& root, std::vector<std::string>* warnings)
      : path_(std::move(path)), root_(root), warnings_(warnings) {}

  ModelConfig read() {
    if (!root_.is_object()) model_error(path_, "is not a JSON object", "is this a model's config.json?");
    find_family();
    read_sizes();
    read_rope();
    if (family_->hybrid) read_linear_attention();
    read_layers();
    read_mlp();
    refuse_unless("attn_output_gate", family_->hybrid);
    refuse_sliding_window();
    return std::move(config_);
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& what,
                           const std::string& hint = "") const {
    model_error(path_, (text_ == &root_ ? "" : "text_config.") + key + ": " + what, hint);
  }
  [[noreturn]] void not_built(const std::string& key, const json& value, const std::string& wanted) const {
    refuse(key, fmt::format("{} is not built; {} is", value.dump(), wanted),
           "use another model, or another trainer");
  }
  void warn(const std::string& text) const {
    if (warnings_ != nullptr) warnings_->push_back(path_ + ": " + text);
  }

  // The key's value, or null if it is absent or null.
  [[nodiscard]] const json* find(const std::string& key) const {
    const auto found = text_->find(key);
    return found == text_->end() || found->is_null() ? nullptr : &*found;
  }
  // fallback: -1 makes the key required.
  [[nodiscard]] int64_t integer(const std::string& key, int64_t low, int64_t high,
                                int64_t fallback = -1) const {
    const json* value = find(key);
    if (value == nullptr && fallback < 0) refuse(key, "is missing, and this family needs it");
    return value == nullptr ? fallback : integer_value(key, *value, low, high);
  }
  [[nodiscard]] int64_t integer_value(const std::string& key, const json& value, int64_t low,
                                      int64_t high) const {
    if (!value.is_number_integer()) refuse(key, "a whole number is needed, not " + value.dump());
    const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high);
    if (huge || value.get<int64_t>() < low || value.get<int64_t>() > high) {
      refuse(key, fmt::format("{} is outside {} to {}", value.dump(), low, high));
    }
    return value.get<int64_t>();
  }
  [[nodiscard]] double number(const json* from, const std::string& key, double fallback, double low,
                              double high) const {
    if (from == nullptr) return fallback;
    if (!from->is_number()) refuse(key, "a number is needed, not " + from->dump());
    const double value = from->get<double>();
    if (!(value >= low && value <= high))
      refuse(key, fmt::format("{} is outside {} to {}", from->dump(), low, high));
    return value;
  }
  [[nodiscard]] bool boolean(const std::string& key, bool fallback) const {
    return boolean_value(key, find(key), fallback);
  }
  [[nodiscard]] bool boolean_value(const std::string& key, const json* value, bool fallback) const {
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(key, "true or false is needed, not " + value->dump());
    return value->get<bool>();
  }

  void find_family();
  void read_sizes();
  void read_rope();
  [[nodiscard]] const json* rope_dictionary() const;
  void read_linear_attention();
  void read_layers();
  void read_mixers();
  void read_sparsity();
  void read_mlp();
  void read_moe();
  void refuse_sliding_window() const;
  void refuse_unless(const std::string& key, bool wanted) const;

  std::string path_;
  const json& root_;
  const json* text_ = nullptr;  // where the decoder's keys are
  std::vector<std::string>* warnings_;
  const Family* family_ = nullptr;
  ModelConfig config_;
};

void ConfigReader::find_family() {
  text_ = &root_;
  const json* type = find("model_type");
  if (type == nullptr || !type->is_string()) {
    refuse("model_type", type == nullptr ? "is missing" : "a string is needed, not " + type->dump());
  }
  const auto name = type->get<std::string>();
  std::string known;
  for (const Family& family : kFamilies) {
    if (name == family.name || name == family.text_type) family_ = &family;
    known += (known.empty() ? "" : ", ") + std::string(family.name);
  }
  if (family_ == nullptr) refuse("model_type", fmt::format("\"{}\" is not built; built are {}", name, known));
  config_.family = family_->name;
  const json* nested = find("text_config");
  if (nested == nullptr) return;
  if (!nested->is_object()) refuse("text_config", "an object is needed, not " + nested->dump());
  if (name == family_->text_type) refuse("text_config", fmt::format("model_type \"{}\" has none", name));
  config_.wrapped = true;
  text_ = nested;
  const json* inner = find("model_type");
  if (inner != nullptr && *inner != family_->text_type && *inner != family_->name) {
    refuse("model_type",
           fmt::format("{} does not go with model_type \"{}\" of the wrapper", inner->dump(), name));
  }
}

void ConfigReader::read_sizes() {
  config_.vocab_size = integer("vocab_size", 1, kMaxVocabulary);
  config_.hidden_size = integer("hidden_size", 1, kMaxWidth);
  config_.num_attention_heads = integer("num_attention_heads", 1, kMaxCount);
  const int64_t heads = config_.num_attention_heads;
  // A null counts as given by llama and qwen3: as many as heads.
  const bool given = text_->contains("num_key_value_heads");
  const bool as_heads = family_->key_value_heads == 0 || (given && config_.family == "qwen3");
  config_.num_key_value_heads =
      integer("num_key_value_heads", 1, kMaxCount, as_heads ? heads : family_->key_value_heads);
  if (heads % config_.num_key_value_heads != 0) {
    refuse("num_attention_heads",
           fmt::format("{} is not a multiple of num_key_value_heads {}", heads, config_.num_key_value_heads));
  }
  const bool divides = config_.hidden_size % heads == 0;
  if (!divides && (config_.family == "llama" || (family_->head_dim == 0 && find("head_dim") == nullptr))) {
    refuse("hidden_size",
           fmt::format("{} is not a multiple of num_attention_heads {}", config_.hidden_size, heads));
  }
  config_.head_dim = integer("head_dim", 1, kMaxHeadDim,
                             family_->head_dim != 0 ? family_->head_dim : config_.hidden_size / heads);
  config_.rms_norm_eps =
      number(find("rms_norm_eps"), "rms_norm_eps", 1e-6, std::numeric_limits<double>::min(), 1.0);
  config_.initializer_range = number(find("initializer_range"), "initializer_range", 0.02, 0, 1);
  config_.max_position_embeddings = integer("max_position_embeddings", 1, int64_t{1} << 40, 32768);
  config_.norm_offset = family_->hybrid ? 1 : 0;
  config_.qk_norm = config_.family != "llama";
  config_.attn_output_gate = family_->hybrid;

  const bool inner = boolean("tie_word_embeddings", false);
  config_.tie_word_embeddings = inner;
  if (!config_.wrapped) return;
  const auto outer = root_.find("tie_word_embeddings");
  const json* value = outer == root_.end() || outer->is_null() ? nullptr : &*outer;
  config_.tie_word_embeddings = boolean_value("tie_word_embeddings", value, false);
  if (inner != config_.tie_word_embeddings && text_->contains("tie_word_embeddings")) {
    warn(fmt::format("tie_word_embeddings is {} for the wrapper and {} in text_config; the wrapper's rules",
                     config_.tie_word_embeddings, inner));
  }
}

// The newer spelling is a dictionary; rope_scaling is its older name. What it does not say may stand beside
// it.
const json* ConfigReader::rope_dictionary() const {
  const json* parameters = find("rope_parameters");
  const json* scaling = find("rope_scaling");
  for (const auto& [key, value] :
       {std::pair{"rope_parameters", parameters}, std::pair{"rope_scaling", scaling}}) {
    if (value != nullptr && !value->is_object()) refuse(key, "an object is needed, not " + value->dump());
  }
  if (scaling != nullptr && scaling->empty()) scaling = nullptr;
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    refuse("rope_scaling",
           fmt::format("{} contradicts rope_parameters {}", scaling->dump(), parameters->dump()));
  }
  return scaling != nullptr ? scaling : parameters;
}

void ConfigReader::read_rope() {
  const json* dictionary = rope_dictionary();
  const std::string name = find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const auto look = [&](const std::string& key) -> std::pair<std::string, const json*> {
    if (dictionary != nullptr && dictionary->contains(key) && !(*dictionary)[key].is_null()) {
      return {name + "." + key, &(*dictionary)[key]};
    }
    return {key, find(key)};
  };
  if (dictionary != nullptr) {
    for (const auto& [key, value] : dictionary->items()) {
      const bool type = key == "rope_type" || key == "type";
      if (type && value != "default") not_built(name + "." + key, value, "\"default\"");
      if (value.is_object()) not_built(name + "." + key, value, "one set of parameters for all layers");
      if (!type && key != "rope_theta" && key != "partial_rotary_factor" && key != "mrope_section" &&
          key != "mrope_interleaved") {
        warn(fmt::format("{}.{} = {} has no meaning for rope_type default; it is not used", name, key,
                         value.dump()));
      }
    }
  }
  const auto [theta_key, theta] = look("rope_theta");
  config_.rope_theta = number(theta, theta_key, 10000, 1, 1e15);
  const auto [factor_key, factor] = look("partial_rotary_factor");
  const double partial = number(factor, factor_key, family_->hybrid ? 0.25 : 1.0, 0, 1);
  if (!family_->hybrid && partial != 1) not_built(factor_key, *factor, "1.0 (all that this family has)");
  config_.rotary_dim = static_cast<int64_t>(static_cast<double>(config_.head_dim) * partial);
  if (config_.rotary_dim < 2 || config_.rotary_dim % 2 != 0) {
    refuse(factor_key,
           fmt::format("rotates {} of {} dimensions of a head; an even number of at least 2 is needed",
                       config_.rotary_dim, config_.head_dim));
  }
}

void ConfigReader::read_linear_attention() {
  config_.linear_num_key_heads = integer("linear_num_key_heads", 1, kMaxCount, 16);
  config_.linear_num_value_heads = integer("linear_num_value_heads", 1, kMaxCount, 32);
  config_.linear_key_head_dim = integer("linear_key_head_dim", 1, kMaxDeltaRuleDim, 128);
  config_.linear_value_head_dim = integer("linear_value_head_dim", 1, kMaxDeltaRuleDim, 128);
  config_.linear_conv_kernel_dim = integer("linear_conv_kernel_dim", 1, kMaxConvTaps, 4);
  if (config_.linear_num_value_heads % config_.linear_num_key_heads != 0) {
    refuse("linear_num_value_heads",
           fmt::format("{} is not a multiple of linear_num_key_heads {}", config_.linear_num_value_heads,
                       config_.linear_num_key_heads));
  }
}

void ConfigReader::read_layers() {
  config_.layers.resize(static_cast<size_t>(integer("num_hidden_layers", 1, kMaxCount)));
  read_mixers();
  if (family_->moe) read_sparsity();
}

void ConfigReader::read_mixers() {
  const json* types = find("layer_types");
  if (types == nullptr) {
    if (!family_->hybrid) return;
    const int64_t interval = integer("full_attention_interval", 1, kMaxCount, 4);
    for (int64_t i = 0; i < config_.num_layers(); ++i) {
      const bool full = (i + 1) % interval == 0;
      config_.layers[static_cast<size_t>(i)].mixer =
          full ? MixerKind::kFullAttention : MixerKind::kLinearAttention;
    }
    return;
  }
  if (!types->is_array() || types->size() != config_.layers.size()) {
    refuse("layer_types",
           fmt::format("a list of num_hidden_layers = {} kinds is needed, not {}", config_.num_layers(),
                       types->is_array() ? fmt::format("one of {}", types->size()) : types->dump()));
  }
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    const json& kind = (*types)[i];
    if (kind == "linear_attention" && family_->hybrid) {
      config_.layers[i].mixer = MixerKind::kLinearAttention;
    } else if (kind != "full_attention") {
      not_built(fmt::format("layer_types[{}]", i), kind,
                family_->hybrid ? "\"linear_attention\" or \"full_attention\"" : "\"full_attention\"");
    }
  }
}

// Layer i is a mixture unless it is listed, there are no experts, or the step skips it.
void ConfigReader::read_sparsity() {
  const bool always = config_.family == "qwen3_5_moe";
  const json* experts = find("num_experts");
  const json* local = find("num_local_experts");
  if (experts != nullptr && local != nullptr && *experts != *local) {
    refuse("num_experts", fmt::format("{} contradicts num_local_experts {}", experts->dump(), local->dump()));
  }
  const std::string key = experts == nullptr && local != nullptr ? "num_local_experts" : "num_experts";
  config_.num_experts = integer(key, always ? 1 : 0, kMaxCount);
  std::vector<bool> dense(config_.layers.size(), config_.num_experts == 0);
  const int64_t step = integer("decoder_sparse_step", 1, kMaxCount, 1);
  if (const json* list = find("mlp_only_layers"); list != nullptr) {
    if (!list->is_array()) refuse("mlp_only_layers", "a list of layers is needed, not " + list->dump());
    for (const json& item : *list) {
      const auto layer = static_cast<size_t>(integer_value("mlp_only_layers", item, 0, kMaxCount));
      if (layer >= dense.size()) {
        warn(fmt::format("mlp_only_layers names layer {}, but there are {}", layer, dense.size()));
      } else {
        dense[layer] = true;
      }
    }
    if (always && !list->empty())
      warn("mlp_only_layers is not used: every layer of qwen3_5_moe is a mixture of experts");
  }
  if (always && step != 1)
    warn("decoder_sparse_step is not used: every layer of qwen3_5_moe is a mixture of experts");
  for (size_t i = 0; i < dense.size(); ++i) {
    const bool skipped = dense[i] || (static_cast<int64_t>(i) + 1) % step != 0;
    config_.layers[i].mlp = skipped && !always ? MlpKind::kDense : MlpKind::kMoe;
  }
}

void ConfigReader::read_mlp() {
  const int64_t mixtures = config_.num_moe_layers();
  if (mixtures < config_.num_layers()) {
    config_.intermediate_size = integer("intermediate_size", 1, kMaxWidth);
  } else if (find("intermediate_size") != nullptr) {
    config_.intermediate_size = integer("intermediate_size", 0, kMaxWidth);  // said, and used by no layer
  }
  if (mixtures > 0) read_moe();
}

void ConfigReader::read_moe() {
  config_.moe_intermediate_size = integer("moe_intermediate_size", 1, kMaxWidth);
  config_.num_experts_per_tok = integer("num_experts_per_tok", 1, kMaxCount, family_->experts_per_tok);
  if (config_.num_experts_per_tok > config_.num_experts) {
    refuse("num_experts_per_tok",
           fmt::format("{} is more than num_experts {}", config_.num_experts_per_tok, config_.num_experts));
  }
  if (family_->shared_width != 0) {
    config_.shared_expert_intermediate_size =
        integer("shared_expert_intermediate_size", 1, kMaxWidth, family_->shared_width);
  } else if (const json* shared = find("shared_expert_intermediate_size");
             shared != nullptr && *shared != 0) {
    not_built("shared_expert_intermediate_size", *shared, "0 (this family has no shared expert)");
  }
  config_.norm_topk_prob = boolean("norm_topk_prob", family_->norm_topk_prob);
  if (config_.family == "qwen3_5_moe" && !config_.norm_topk_prob) {
    not_built("norm_topk_prob", json(false), "true (this family always renormalises)");
  }
  const bool wanted = boolean("output_router_logits", false);
  const double coefficient = number(find("router_aux_loss_coef"), "router_aux_loss_coef", 0, 0, 1e6);
  if (wanted || coefficient != 0) {
    warn(fmt::format("router_aux_loss_coef {}, output_router_logits {}: the auxiliary loss is not used",
                     coefficient, wanted));
  }
}

void ConfigReader::refuse_unless(const std::string& key, bool wanted) const {
  if (boolean(key, wanted) != wanted) not_built(key, json(!wanted), wanted ? "true" : "false");
}

void ConfigReader::refuse_sliding_window() const {
  refuse_unless("use_sliding_window", false);
  const json* window = find("sliding_window");
  const bool switched =
      config_.family == "qwen3" || config_.family == "qwen3_moe" || find("use_sliding_window") != nullptr;
  if (window != nullptr && !switched) not_built("sliding_window", *window, "null (full attention)");
}

}  // namespace

ModelConfig read_model_config(const std::string& path, std::vector<std::string>* warnings) {
  std::string file = path;
  if (folder_exists(path)) file += path.ends_with('/') ? "config.json" : "/config.json";
  if (!file_exists(file) && other_than_file(file).empty()) {
    model_error(file, "no such file", "a model folder in Hugging Face layout has a config.json");
  }
  const std::string text = read_file(file, size_t{16} << 20);
  check_json(file, text);
  const json root = json::parse(text);
  ModelConfig config = ConfigReader(file, root, warnings).read();
  check_config_size(file, config);
  check_config_keys(file, text, warnings);
  return config;
}

}  // namespace lathe
