// The model families that config.json can name: what each is, and transformers' defaults for keys that a file leaves out.
// Used by hf_config.cc alone.
#pragma once

#include <array>
#include <cstdint>

namespace lathe {

struct Family {
  const char* name;
  const char* text_type;  // model_type of a file without the vision wrapper
  bool hybrid;
  bool moe;
  int64_t key_value_heads;  // 0: as many as heads
  int64_t head_dim;         // 0: hidden_size / num_attention_heads
  int64_t experts_per_tok;
  int64_t shared_width;
  bool norm_topk_prob;
};
inline constexpr std::array<Family, 6> kFamilies = {{
    {"llama", "llama", false, false, 0, 0, 0, 0, false},
    {"qwen3", "qwen3", false, false, 32, 128, 0, 0, false},
    {"qwen3_moe", "qwen3_moe", false, true, 4, 0, 8, 0, false},
    {"qwen3_next", "qwen3_next", true, true, 2, 256, 10, 512, true},
    {"qwen3_5", "qwen3_5_text", true, false, 4, 256, 0, 0, false},
    {"qwen3_5_moe", "qwen3_5_moe_text", true, true, 2, 256, 8, 512, true},
}};

}  // namespace lathe
