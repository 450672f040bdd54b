#include <string>
#include <utility>
#include <vector>

#include "lathe/io/hf_folder.h"
#include "lathe/model/parameters.h"

#include "fuzz/scratch_folder.h"
#include "fuzz/targets.h"

namespace lathe::fuzz {
namespace {

// A model of two small tensors' worth of names, enough for a layout to be asked for.
ModelConfig tiny_config() {
  ModelConfig config;
  config.family = "qwen3_moe";
  config.vocab_size = 3;
  config.hidden_size = 2;
  config.layers.push_back({.mixer = MixerKind::kFullAttention, .mlp = MlpKind::kMoe});
  config.num_attention_heads = 1;
  config.num_key_value_heads = 1;
  config.head_dim = 2;
  config.rotary_dim = 2;
  config.qk_norm = true;
  config.num_experts = 1;
  config.num_experts_per_tok = 1;
  config.moe_intermediate_size = 1;
  return config;
}

// Every byte is read, as bytes and where the type allows as numbers.
void read_tensors(const SafetensorsFile& file) {
  std::vector<float> values;
  for (const auto& [name, info] : file.tensors()) {
    const std::byte* bytes = file.bytes(info);
    uint64_t ones = 0;
    for (uint64_t i = 0; i < info.bytes(); ++i) ones += bytes[i] == std::byte{1} ? 1 : 0;
    expect(ones <= info.bytes(), "more bytes than there are");
    if (!is_weight_dtype(info.dtype)) continue;
    const int64_t elements = info.elements();
    expect(static_cast<uint64_t>(elements * safetensors_dtype_size(info.dtype)) == info.bytes(),
           "tensor " + name + " has other bytes than its shape");
    values.resize(static_cast<size_t>(elements));
    weights_to_float(info.dtype, bytes, elements, values.data());
  }
  expect(file.names_in_file_order().size() == file.tensors().size(), "names are lost");
}

void examine(const std::string& folder_path) {
  static_cast<void>(accepts(ErrorKind::kModel, [&] {
    const HfFolder folder(folder_path);
    static_cast<void>(examine_folder(tiny_config(), folder));
    std::vector<std::string> warnings;
    static_cast<void>(layout_of_folder(tiny_config(), folder, &warnings));
  }));
}

}  // namespace

void fuzz_safetensors(std::string_view bytes) {
  static const ScratchFolder scratch;
  const std::string path = scratch.write("model.safetensors", bytes);
  if (accepts(ErrorKind::kModel, [&] { read_tensors(SafetensorsFile(path)); })) examine(scratch.path());
}

void fuzz_weight_index(std::string_view bytes) {
  static const ScratchFolder scratch;
  static const bool written = [] {
    const std::string kFirst = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    const std::string kSecond = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    for (const auto& [name, header] : {std::pair("a.safetensors", kFirst), {"b.safetensors", kSecond}}) {
      const std::string length{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
      scratch.write(name, length + header + std::string(4, '\0'));
    }
    return true;
  }();
  static_cast<void>(written);
  scratch.write(kSafetensorsIndexName, bytes);
  examine(scratch.path());
}

}  // namespace lathe::fuzz
