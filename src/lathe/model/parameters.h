// The decoder's parameters, declared once: allocation, initialisation, checkpoint names, gradients and optimizer state
// all walk this list. A parameter is what kernels read (experts stacked, gate and up fused, qwen3_next's groups split);
// `slices` say which rows of which Hugging Face tensor it is made of, for reading, writing, `trainable` patterns and
// gradients under Hugging Face names.
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
  kEmbedding,           // [V, H]; also the head's table when tied
  kInputNorm,           // [H]
  kPostAttentionNorm,   // [H]
  kQProj,               // [q_heads * head_dim (* 2 with output gate, per head [query | gate]), H]
  kKProj,               // [kv_heads * head_dim, H]
  kVProj,               // [kv_heads * head_dim, H]
  kOProj,               // [H, q_heads * head_dim]
  kQNorm,               // [head_dim]
  kKNorm,               // [head_dim]
  kInProjQkv,           // [mixed_dim, H]: all query heads, all key heads, all value heads
  kInProjZ,             // [value_dim, H]
  kInProjBa,            // [2 * value_heads, H]: b of all value heads, then a
  kConv,                // [mixed_dim, taps]
  kALog,                // [value_heads]
  kDtBias,              // [value_heads]
  kGatedNorm,           // [value_head_dim]
  kOutProj,             // [H, value_dim]
  kGateUp,              // [2 * I, H]: dense MLP, gate rows then up rows
  kDown,                // [H, I]
  kRouter,              // [E, H]
  kExpertsGateUp,       // [E, 2 * I, H]
  kExpertsDown,         // [E, H, I]
  kSharedGateUp,        // [2 * Is, H]
  kSharedDown,          // [H, Is]
  kSharedGate,          // [1, H]
  kFinalNorm,           // [H]
  kLmHead,              // [V, H]; absent when tied
};

// rows [hf_row, hf_row + rows) of the Hugging Face tensor are rows [row, row + rows) of the parameter. A row is
// `row_elements` of the parameter's spec; a Hugging Face tensor is cut into rows of the same width.
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

  // Matrices that take part in products are stored in model.weight_dtype; the rest (norms, A_log, dt_bias, convolution)
  // stays f32.
  [[nodiscard]] bool is_matrix() const;
  [[nodiscard]] int64_t rows() const { return shape.size() / row_elements; }
  [[nodiscard]] std::string name() const;  // "layers.3.experts_gate_up", for memory reports
};

struct ParameterLayout {
  std::vector<ParameterSpec> parameters;     // embedding, layers in order, final norm, head
  std::map<std::string, Shape> hf_tensors;   // every Hugging Face tensor the decoder reads, with its shape in the file
  std::vector<std::string> passthrough;      // vision, MTP: in the folder, not read, written back unchanged
};

// How tensors are named and stacked on disk.
struct HfNaming {
  std::string prefix = "model.";     // before "layers." and "embed_tokens."
  bool fused_experts = false;        // experts.gate_up_proj [E, 2I, H], else one tensor per expert and projection
};

// The layout of a folder: the prefix and the experts' layout are found by looking; a missing tensor or a wrong shape is a
// model error that names file, tensor, shape and what the config needs. Layouts may be mixed layer by layer.
[[nodiscard]] ParameterLayout layout_of_folder(const ModelConfig& config, const HfFolder& folder,
                                               std::vector<std::string>* warnings);
[[nodiscard]] ParameterLayout layout_from_names(const ModelConfig& config, const HfNaming& naming);

[[nodiscard]] const ParameterSpec* find_parameter(const ParameterLayout& layout, ParameterRole role, int layer = -1);

}  // namespace lathe
