// Between Hugging Face folders and parameters in f32 on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/rng.h"
#include "lathe/io/files.h"
#include "lathe/io/hf_folder.h"
#include "lathe/mesh/communicator.h"
#include "lathe/model/parameters.h"

namespace lathe {

// Fills `to` (f32, spec.shape) from the folder. NaN or infinity in a weight is a model error with the
// tensor's name.
void read_parameter(const HfFolder& folder, const ParameterSpec& spec, std::span<float> to);

// Gives the f32 values of elements [first, first + to.size()) of a parameter, host order.
using ParameterValues = std::function<void(size_t parameter, int64_t first, std::span<float> to)>;

// Several ranks write together: how, and which elements of a parameter this one writes.
struct ParameterShare {
  WriteShare files;
  std::function<FlatShard(size_t parameter)> elements;
};

// Writes a model folder in the layout that was read: the same files, names, shapes and dtypes (round to
// nearest even), config.json and every other file of `source` that is not a safetensors file copied through.
// Tensors for which changed(name) is false, and passed-through ones, are copied byte for byte. `to` must
// exist. Values are asked for in parts: no more than a few MiB of them are in memory.
void export_model(const HfFolder& source, const ParameterLayout& layout, const ParameterValues& values,
                  const std::function<bool(const std::string& tensor)>& changed, const std::string& to,
                  const ParameterShare& share = {});
// Bytes of the files that export_model writes.
[[nodiscard]] uint64_t exported_bytes(const HfFolder& source);

// One file, f32, one tensor per Hugging Face tensor for which included(name) is true, under its name and
// shape.
void write_hf_tensors(const std::string& path, const ParameterLayout& layout, const ParameterValues& values,
                      const std::function<bool(const std::string& tensor)>& included,
                      const ParameterShare& share = {});

// Element `index` of a random-weight parameter, by the rules below.
[[nodiscard]] float initial_value(const ModelConfig& config, ParameterRole role, const CounterRng& rng,
                                  int64_t index);

// A random-weight model from a config.json (or the folder that has one), as transformers initialises it (normal with
// initializer_range; norms at their neutral value; dt_bias 1; A_log = log U(0.01, 16)); values depend on the seed and the
// tensor's name only. dtype: f32, bf16, f16; A_log and linear_attn.norm stay f32. A wrapper's config becomes the flat one
// of its text part. Files above `shard_bytes` are split. `to` must be absent or empty, and is whole or not there.
// Config errors: `to`, dtype. `warnings`: what was changed in the config, and those of read_model_config. on_tensor: called
// after every tensor, for a display.
void initialize_model(const std::string& config_path, const std::string& to, uint64_t seed,
                      const std::string& dtype, std::vector<std::string>* warnings = nullptr,
                      int64_t shard_bytes = int64_t{4} << 30, const std::function<void()>& on_tensor = {});

}  // namespace lathe
