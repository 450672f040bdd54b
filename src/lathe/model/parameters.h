// The decoder's parameters, declared once: allocation, initialisation, checkpoint names, gradients and
// optimizer state all walk this list. A parameter is what kernels read (experts stacked, gate and up fused,
// qwen3_next's groups split); `slices` say which rows of which Hugging Face tensor it is made of, for
// reading, writing, `trainable` patterns and gradients under Hugging Face names.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lathe/core/view.h"
#include "lathe/model/config.h"

namespace lathe {

class HfFolder;

// Shapes (H hidden, V vocabulary, I widths, E experts; see spec names in model/config.h):
enum class ParameterRole : uint8_t {
  kEmbedding,          // [V, H]; also the head's table when tied
  kInputNorm,          // [H]
  kPostAttentionNorm,  // [H]
  kQProj,              // [q_heads * head_dim (* 2 with output gate, per head [query | gate]), H]
  kKProj,              // [kv_heads * head_dim, H]
  kVProj,              // [kv_heads * head_dim, H]
  kOProj,              // [H, q_heads * head_dim]
  kQNorm,              // [head_dim]
  kKNorm,              // [head_dim]
  kInProjQkv,          // [mixed_dim, H]: all query heads, all key heads, all value heads
  kInProjZ,            // [value_dim, H]
  kInProjBa,           // [2 * value_heads, H]: b of all value heads, then a
  kConv,               // [mixed_dim, taps]
  kALog,               // [value_heads]
  kDtBias,             // [value_heads]
  kGatedNorm,          // [value_head_dim]
  kOutProj,            // [H, value_dim]
  kGateUp,             // [2 * I, H]: dense MLP, gate rows then up rows
  kDown,               // [H, I]
  kRouter,             // [E, H]
  kExpertsGateUp,      // [E, 2 * I, H]
  kExpertsDown,        // [E, H, I]
  kSharedGateUp,       // [2 * Is, H]
  kSharedDown,         // [H, Is]
  kSharedGate,         // [1, H]
  kFinalNorm,          // [H]
  kLmHead,             // [V, H]; absent when tied
};

// rows [hf_row, hf_row + rows) of the Hugging Face tensor are rows [row, row + rows) of the parameter. A row
// is `row_elements` of the parameter's spec; a Hugging Face tensor is cut into rows of the same width.
struct HfSlice {
  std::string tensor;
  int64_t hf_row = 0;
  int64_t row = 0;
  int64_t rows = 0;
};

struct ParameterSpec {
  ParameterRole role = ParameterRole::kEmbedding;
  int layer = -1;  // -1: outside the layers
  Shape shape;
  int64_t row_elements = 0;
  std::vector<HfSlice> slices;  // cover every row once

  // Matrices that take part in products are stored in model.weight_dtype; the rest (norms, A_log, dt_bias,
  // convolution) stays f32.
  [[nodiscard]] bool is_matrix() const;
  [[nodiscard]] int64_t rows() const { return shape.size() / row_elements; }
  [[nodiscard]] std::string name() const;  // "layers.3.experts_gate_up", for memory reports
  [[nodiscard]] std::vector<std::string> hf_names()
      const;  // of its slices, each once, in the order of the slices
};

struct ParameterLayout {
  std::vector<ParameterSpec> parameters;  // embedding, layers in order, final norm, head
  std::map<std::string, Shape>
      hf_tensors;  // every Hugging Face tensor the decoder reads, with its shape in the file
  std::vector<std::string> passthrough;  // vision, MTP: in the folder, not read, written back unchanged
  // A tied head that the file holds all the same -> the embedding: equal when read, written with the
  // embedding's values; not in hf_tensors, so it has no gradient of its own.
  std::map<std::string, std::string> aliases;
  std::map<std::string, const char*> shape_keys;  // of hf_tensors, in the words of config.json, for messages
};

// How tensors are named and stacked on disk.
struct HfNaming {
  std::string prefix = "model.";        // before "layers." and "embed_tokens."
  std::string head = "lm_head.weight";  // whole name; unused when tied
  bool fused_experts = false;  // experts.gate_up_proj [E, 2I, H], else one tensor per expert and projection
  // Layers that differ from `fused_experts`; their two stacks may differ too.
  struct LayerExperts {
    bool fused_gate_up = false;
    bool fused_down = false;
  };
  std::map<int, LayerExperts> layers;
};
// As transformers saves a new model of this family.
[[nodiscard]] HfNaming usual_naming(const ModelConfig& config);

// The layout of a folder: the prefix and the experts' layout are found by looking; a missing tensor or a
// wrong shape is a model error that names file, tensor, shape and what the config needs. Layouts may be mixed
// layer by layer.
[[nodiscard]] ParameterLayout layout_of_folder(const ModelConfig& config, const HfFolder& folder,
                                               std::vector<std::string>* warnings);
[[nodiscard]] ParameterLayout layout_from_names(const ModelConfig& config, const HfNaming& naming);

// What is in a folder against what the config needs, without judging; layout_of_folder turns faults into an
// error.
struct FolderFindings {
  ParameterLayout layout;
  std::vector<std::string> missing;  // names
  std::vector<std::string>
      faults;  // wrong shape or dtype, two layouts at once, an untied head that is not there
  std::vector<std::string>
      unexpected;  // read by nothing and neither vision nor MTP; also in layout.passthrough
};
[[nodiscard]] FolderFindings examine_folder(const ModelConfig& config, const HfFolder& folder);

[[nodiscard]] int64_t parameter_count(const ModelConfig& config);
// Parameters that one token meets: k of E experts, the head, not the embedding.
[[nodiscard]] int64_t active_parameter_count(const ModelConfig& config);

[[nodiscard]] const ParameterSpec* find_parameter(const ParameterLayout& layout, ParameterRole role,
                                                  int layer = -1);

}  // namespace lathe
