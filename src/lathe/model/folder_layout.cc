#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "lathe/core/error.h"
#include "lathe/io/hf_folder.h"
#include "lathe/model/parameters.h"

namespace lathe {
namespace {

constexpr std::array<const char*, 4> kPrefixes = {"model.language_model.", "model.", "language_model.model.",
                                                  ""};
constexpr std::array<const char*, 3> kHeads = {"lm_head.weight", "language_model.lm_head.weight",
                                               "model.lm_head.weight"};
constexpr size_t kMostListed = 10;

// The first ones of a list, with separators, and how many are left out.
std::string joined(const std::vector<std::string>& items, const char* separator) {
  std::string text;
  for (size_t i = 0; i < items.size() && i < kMostListed; ++i) text += (i == 0 ? "" : separator) + items[i];
  if (items.size() > kMostListed) text += fmt::format("{}and {} more", separator, items.size() - kMostListed);
  return text;
}

// Parts that a text decoder leaves alone, whatever prefix their writer gave them.
bool is_known_extra(std::string_view name) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view prefix : {"model.", "language_model."}) {
      if (!name.starts_with(prefix)) continue;
      name.remove_prefix(prefix.size());
      again = true;
    }
  }
  return name.starts_with("mtp.") || name.starts_with("visual.") || name.starts_with("vision_tower.") ||
         name.starts_with("multi_modal_projector.");
}

// A tensor of a decoder layer that would change what the layer computes.
bool changes_the_maths(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix + "layers.") && name != "lm_head.bias") return false;
  for (const char* ending :
       {".bias", ".weight_scale", ".weight_scale_inv", ".input_scale", ".qweight", ".scales",
        ".lora_A.weight", ".lora_B.weight", ".e_score_correction_bias", ".sinks"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

class FolderExaminer {
 public:
  FolderExaminer(const ModelConfig& config, const HfFolder& folder) : config_(config), folder_(folder) {}

  FolderFindings examine() {
    find_prefix();
    find_head();
    for (int layer = 0; layer < static_cast<int>(config_.num_layers()); ++layer) {
      if (config_.layers[static_cast<size_t>(layer)].mlp == MlpKind::kMoe) find_experts(layer);
    }
    findings_.layout = layout_from_names(config_, naming_);
    for (const auto& [name, shape] : findings_.layout.hf_tensors) check_tensor(name, shape);
    if (config_.tie_word_embeddings) check_tied_head();
    sort_the_rest();
    return std::move(findings_);
  }

 private:
  void find_prefix() {
    naming_ = usual_naming(config_);
    bool found = false;
    for (const char* prefix : kPrefixes) {
      const std::string table = std::string(prefix) + "embed_tokens.weight";
      if (!folder_.has(table)) continue;
      if (found) {
        findings_.faults.push_back(fmt::format(
            "{}embed_tokens.weight and {} are both there: which is the decoder?", naming_.prefix, table));
        return;
      }
      naming_.prefix = prefix;
      found = true;
    }
  }

  void find_head() {
    for (const char* head : kHeads) {
      if (!folder_.has(head)) continue;
      naming_.head = head;
      head_found_ = true;
      return;
    }
  }

  void find_experts(int layer) {
    const std::string at = fmt::format("{}layers.{}.mlp.experts.", naming_.prefix, layer);
    HfNaming::LayerExperts found;
    found.fused_gate_up = look_for_experts(at, "gate_up_proj", "gate_proj.weight");
    found.fused_down = look_for_experts(at, "down_proj", "down_proj.weight");
    naming_.layers[layer] = found;
  }

  // Whether one stack of experts is fused. If neither layout is there, what is usual is reported as missing.
  bool look_for_experts(const std::string& at, const std::string& fused, const std::string& single) {
    const bool has_fused = folder_.has(at + fused);
    const bool has_single = folder_.has(at + "0." + single);
    if (has_fused && has_single) {
      findings_.faults.push_back(
          fmt::format("{}{} and {}0.{} are both there: which holds the experts?", at, fused, at, single));
    }
    return has_fused || (!has_single && naming_.fused_experts);
  }

  void check_tensor(const std::string& name, const Shape& shape) {
    if (!folder_.has(name)) {
      findings_.missing.push_back(name);
      return;
    }
    const TensorInfo& info = folder_.info(name);
    bool same = static_cast<int>(info.shape.size()) == shape.rank();
    for (int i = 0; same && i < shape.rank(); ++i) same = info.shape[static_cast<size_t>(i)] == shape[i];
    if (!same) {
      findings_.faults.push_back(fmt::format("{}: {} has shape {}; config.json needs {} = {}",
                                             folder_.file_of(name), name, shape_text(info.shape),
                                             shape.text(), findings_.layout.shape_keys.at(name)));
    }
    if (!is_weight_dtype(info.dtype)) {
      findings_.faults.push_back(fmt::format("{}: {} has dtype {}; F32, BF16 or F16 is needed",
                                             folder_.file_of(name), name, info.dtype));
    }
  }

  void check_tied_head() {
    if (!head_found_) return;
    const std::string embedding = naming_.prefix + "embed_tokens.weight";
    findings_.layout.aliases[naming_.head] = embedding;
    if (!folder_.has(embedding)) return;
    const TensorInfo& head = folder_.info(naming_.head);
    const TensorInfo& table = folder_.info(embedding);
    if (head.shape != table.shape || !is_weight_dtype(head.dtype)) {
      findings_.faults.push_back(
          fmt::format("{}: {} is {} {}; tie_word_embeddings is true, so it must equal {} {} {}",
                      folder_.file_of(naming_.head), naming_.head, head.dtype, shape_text(head.shape),
                      embedding, table.dtype, shape_text(table.shape)));
    } else if (is_weight_dtype(table.dtype)) {
      compare_tied_head(embedding, head);
    }
  }

  void compare_tied_head(const std::string& embedding, const TensorInfo& head) {
    if (head.shape.size() != 2) return;
    std::vector<float> a(static_cast<size_t>(head.shape[1]));
    std::vector<float> b(a.size());
    for (int64_t row = 0; row < head.shape[0]; ++row) {
      folder_.read_rows(naming_.head, row, 1, head.shape[1], a.data());
      folder_.read_rows(embedding, row, 1, head.shape[1], b.data());
      if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0 || a == b) continue;
      findings_.faults.push_back(fmt::format(
          "{}: {} differs from {} (first in row {}) though config.json says tie_word_embeddings true",
          folder_.file_of(naming_.head), naming_.head, embedding, row));
      return;
    }
  }

  void sort_the_rest() {
    for (const std::string& name : folder_.tensor_names()) {
      if (findings_.layout.hf_tensors.count(name) != 0 || findings_.layout.aliases.count(name) != 0) continue;
      findings_.layout.passthrough.push_back(name);
      if (is_known_extra(name)) continue;
      findings_.unexpected.push_back(name);
      if (changes_the_maths(name, naming_.prefix)) {
        findings_.faults.push_back(
            fmt::format("{}: {} would change what the layer computes, and lathe has no place for it",
                        folder_.file_of(name), name));
      }
    }
  }

  const ModelConfig& config_;
  const HfFolder& folder_;
  HfNaming naming_;
  bool head_found_ = false;
  FolderFindings findings_;
};

[[noreturn]] void refuse_missing(const ModelConfig& config, const HfFolder& folder,
                                 const FolderFindings& findings) {
  const std::vector<std::string>& missing = findings.missing;
  std::vector<std::string> described;
  for (const std::string& name : missing) {
    described.push_back(fmt::format("{} {} = {}", name, findings.layout.hf_tensors.at(name).text(),
                                    findings.layout.shape_keys.at(name)));
  }
  std::string hint = "every weight must be there: nothing is initialised at random";
  const std::string nearest =
      findings.unexpected.empty() ? "" : nearest_name(missing.front(), findings.unexpected);
  if (!config.tie_word_embeddings && missing.front() == "lm_head.weight") {
    hint = fmt::format("tie_word_embeddings is false in config.json{}; {}",
                       config.wrapped ? " (the one beside text_config rules)" : "", hint);
  } else if (!nearest.empty()) {
    hint = fmt::format("the folder has {}, which nothing reads; {}", nearest, hint);
  }
  model_error(folder.path(),
              fmt::format("{} tensor{} that config.json ({}, {} layers) needs {} missing: {}", missing.size(),
                          missing.size() == 1 ? "" : "s", config.family, config.num_layers(),
                          missing.size() == 1 ? "is" : "are", joined(described, "; ")),
              hint);
}

// Every tensor is saved in the dtype it came in, and what trains may leave the range of F16.
void warn_of_f16(const HfFolder& folder, const ParameterLayout& layout, std::vector<std::string>* warnings) {
  int64_t count = 0;
  for (const auto& [name, shape] : layout.hf_tensors) count += folder.info(name).dtype == "F16" ? 1 : 0;
  if (count == 0) return;
  warnings->push_back(fmt::format(
      "{}: {} tensors are F16, and are saved as such: a value beyond 65504 would stop the save; bf16 or "
      "f32 weights have no such limit",
      folder.path(), count));
}

}  // namespace

FolderFindings examine_folder(const ModelConfig& config, const HfFolder& folder) {
  return FolderExaminer(config, folder).examine();
}

ParameterLayout layout_of_folder(const ModelConfig& config, const HfFolder& folder,
                                 std::vector<std::string>* warnings) {
  FolderFindings findings = examine_folder(config, folder);
  if (!findings.missing.empty()) refuse_missing(config, folder, findings);
  if (!findings.faults.empty()) {
    model_error(folder.path(), joined(findings.faults, "; "),
                "config.json and the weights must belong together");
  }
  if (warnings != nullptr && !findings.unexpected.empty()) {
    warnings->push_back(fmt::format("{}: {} tensor{} the decoder does not read, copied through unchanged: {}",
                                    folder.path(), findings.unexpected.size(),
                                    findings.unexpected.size() == 1 ? "" : "s",
                                    joined(findings.unexpected, ", ")));
  }
  if (warnings != nullptr) warn_of_f16(folder, findings.layout, warnings);
  return std::move(findings.layout);
}

}  // namespace lathe
