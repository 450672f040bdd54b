#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/core/parallel.h"
#include "lathe/core/rng.h"
#include "lathe/io/files.h"
#include "lathe/model/checkpoint.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kPart = 65536;  // elements that one task makes

struct NewTensor {
  std::string name;
  Shape shape;
  ParameterRole role = ParameterRole::kEmbedding;
  std::string dtype;
  [[nodiscard]] int64_t bytes() const { return shape.size() * safetensors_dtype_size(dtype); }
};

bool is_offset_norm(ParameterRole role) {
  return role == ParameterRole::kInputNorm || role == ParameterRole::kPostAttentionNorm ||
         role == ParameterRole::kQNorm || role == ParameterRole::kKNorm || role == ParameterRole::kFinalNorm;
}

void fill(const ModelConfig& config, const NewTensor& tensor, uint64_t seed, Queue& queue, std::byte* to) {
  const CounterRng rng(seed, stream_of(tensor.name));
  const int64_t count = tensor.shape.size();
  const int64_t size = safetensors_dtype_size(tensor.dtype);
  parallel_for(queue, (count + kPart - 1) / kPart, [&](int64_t part) {
    const int64_t begin = part * kPart;
    std::vector<float> values(static_cast<size_t>(std::min(kPart, count - begin)));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = initial_value(config, tensor.role, rng, begin + static_cast<int64_t>(i));
    }
    weights_from_float(tensor.dtype, values.data(), static_cast<int64_t>(values.size()), to + begin * size);
  });
}

// In the order of the parameters, which is that of the layers.
std::vector<NewTensor> tensors_to_make(const ModelConfig& config, const std::string& dtype) {
  const ParameterLayout layout = layout_from_names(config, usual_naming(config));
  std::vector<NewTensor> tensors;
  std::map<std::string, bool> seen;
  for (const ParameterSpec& spec : layout.parameters) {
    for (const std::string& name : spec.hf_names()) {
      if (!seen.try_emplace(name, true).second) continue;  // qwen3_next: one tensor of two parameters
      const bool stays_f32 = spec.role == ParameterRole::kALog || spec.role == ParameterRole::kGatedNorm;
      tensors.push_back({name, layout.hf_tensors.at(name), spec.role, stays_f32 ? "F32" : dtype});
    }
  }
  return tensors;
}

std::vector<std::vector<NewTensor>> cut_into_files(const std::vector<NewTensor>& tensors,
                                                   int64_t shard_bytes) {
  std::vector<std::vector<NewTensor>> files(1);
  int64_t used = 0;
  for (const NewTensor& tensor : tensors) {
    if (!files.back().empty() && used + tensor.bytes() > shard_bytes) {
      files.emplace_back();
      used = 0;
    }
    used += tensor.bytes();
    files.back().push_back(tensor);
  }
  for (auto& file : files) {  // the widest dtype first, which keeps every tensor aligned
    std::sort(file.begin(), file.end(), [](const NewTensor& a, const NewTensor& b) {
      const int64_t wide_a = safetensors_dtype_size(a.dtype);
      const int64_t wide_b = safetensors_dtype_size(b.dtype);
      return wide_a != wide_b ? wide_a > wide_b : a.name < b.name;
    });
  }
  return files;
}

void write_weights(const ModelConfig& config, const std::string& folder, uint64_t seed,
                   const std::string& dtype, int64_t shard_bytes, const std::function<void()>& on_tensor) {
  const std::unique_ptr<Queue> queue = make_queue(available_cores());
  const auto files = cut_into_files(tensors_to_make(config, dtype), shard_bytes);
  std::map<std::string, std::string> weight_map;
  int64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = files.size() == 1
                                 ? kSafetensorsName
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    std::vector<TensorToWrite> tensors;
    for (const NewTensor& made : files[i]) {
      TensorToWrite tensor;
      tensor.name = made.name;
      tensor.dtype = made.dtype;
      for (int d = 0; d < made.shape.rank(); ++d) tensor.shape.push_back(made.shape[d]);
      tensor.produce = [&config, &made, seed, &queue, &on_tensor](std::byte* to) {
        fill(config, made, seed, *queue, to);
        if (on_tensor) on_tensor();
      };
      tensors.push_back(std::move(tensor));
      weight_map[made.name] = name;
      total += made.bytes();
    }
    write_safetensors(folder + "/" + name, tensors, {{"format", "pt"}});
  }
  if (files.size() == 1) return;
  const ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  write_file_atomically(folder + "/" + kSafetensorsIndexName, index.dump(2) + "\n");
}

// The config of what is written: the text part alone, the dtype of the files, no MTP block. Unchanged text stays as it is.
std::string new_config_text(const std::string& text, const ModelConfig& config,
                            const std::string& torch_dtype, std::vector<std::string>* warnings) {
  const auto root = ordered_json::parse(text);
  const auto note = [&](const std::string& what) {
    if (warnings != nullptr) warnings->push_back("config.json: " + what);
  };
  ordered_json written = root;
  if (config.wrapped) {
    written = root["text_config"];
    written["model_type"] = config.family + "_text";
    written["architectures"] = {config.family == "qwen3_5" ? "Qwen3_5ForCausalLM" : "Qwen3_5MoeForCausalLM"};
    written["tie_word_embeddings"] = config.tie_word_embeddings;
    note("the vision part cannot be initialised; the text part is written as a model of its own");
  }
  const char* dtype_key =
      written.contains("torch_dtype") && !written.contains("dtype") ? "torch_dtype" : "dtype";
  if (!written.contains(dtype_key) || written[dtype_key] != torch_dtype) written[dtype_key] = torch_dtype;
  const auto blocks = written.find("mtp_num_hidden_layers");
  if (blocks != written.end() && *blocks != 0) {
    note(fmt::format("mtp_num_hidden_layers {} is set to 0: no MTP block is made", blocks->dump()));
    *blocks = 0;
  }
  return written == root ? text : written.dump(2) + "\n";
}

// The folder under which everything is made before it gets its name.
std::string start_folder(const fs::path& to) {
  std::error_code code;
  if (fs::exists(to, code) && !(fs::is_directory(to, code) && fs::is_empty(to, code))) {
    config_error("--out", fmt::format("{} exists and is not an empty folder", to.string()),
                 "name a folder that does not exist yet");
  }
  std::string partial = to.string() + ".partial";
  fs::remove_all(partial, code);
  fs::create_directories(partial, code);
  if (code == std::errc::no_space_on_device) retryable_error(partial, "cannot be created: " + code.message());
  if (code) config_error("--out", fmt::format("{} cannot be created: {}", partial, code.message()));
  return partial;
}

}  // namespace

float initial_value(const ModelConfig& config, ParameterRole role, const CounterRng& rng, int64_t i) {
  const auto index = static_cast<uint64_t>(i);
  if (is_offset_norm(role)) return static_cast<float>(1 - config.norm_offset);
  if (role == ParameterRole::kGatedNorm || role == ParameterRole::kDtBias) return 1;
  if (role == ParameterRole::kALog) {
    return static_cast<float>(std::log(0.01 + (16.0 - 0.01) * rng.uniform(index)));
  }
  return static_cast<float>(config.initializer_range * rng.normal(index));
}

void initialize_model(const std::string& config_path, const std::string& to, uint64_t seed,
                      const std::string& dtype, std::vector<std::string>* warnings, int64_t shard_bytes,
                      const std::function<void()>& on_tensor) {
  static const std::map<std::string, std::pair<std::string, std::string>> kDtypes = {
      {"f32", {"F32", "float32"}}, {"bf16", {"BF16", "bfloat16"}}, {"f16", {"F16", "float16"}}};
  const auto found = kDtypes.find(dtype);
  if (found == kDtypes.end())
    config_error("--dtype", fmt::format("\"{}\" is not one of f32, bf16, f16", dtype));
  std::string file = config_path;
  if (folder_exists(config_path)) file = (fs::path(config_path) / "config.json").string();
  ModelConfig config = read_model_config(file, warnings);
  const std::string text = new_config_text(read_file(file), config, found->second.second, warnings);
  config.wrapped = false;

  fs::path target = fs::path(to).lexically_normal();
  if (target.filename().empty()) target = target.parent_path();
  const std::string partial = start_folder(target);
  try {
    write_weights(config, partial, seed, found->second.first, shard_bytes, on_tensor);
    write_file_atomically(partial + "/config.json", text);
    std::error_code code;
    fs::rename(partial, target, code);
    if (code) config_error("--out", fmt::format("{} cannot be made: {}", target.string(), code.message()));
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
    throw;
  }
  sync_folder(target.has_parent_path() ? target.parent_path().string() : ".");
}

}  // namespace lathe
