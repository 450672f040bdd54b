#include "lathe/io/hf_folder.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace {

using nlohmann::json;

constexpr const char* kIndexHint = "the index is damaged or of another model: get it again";

std::string join_path(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.back() == '/' ? folder + name : folder + "/" + name;
}

[[noreturn]] void no_weights(const std::string& folder) {
  std::string found;
  for (const std::string& name : list_files(folder)) {
    if (name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".gguf")) {
      found += (found.empty() ? "" : ", ") + name;
    }
  }
  model_error(folder,
              fmt::format("holds neither {} nor {}{}", kSafetensorsName, kSafetensorsIndexName,
                          found.empty() ? "" : "; it has " + found),
              "a model in Hugging Face layout with safetensors weights is needed");
}

// tensor -> file name, as the index has it.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const std::string text = read_file(path);
  check_json(path, text);
  const json index = json::parse(text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    model_error(path, "has no weight_map", kIndexHint);
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const bool plain = file.is_string() && !file.get<std::string>().empty() &&
                       file.get<std::string>().find_first_of("/\\") == std::string::npos;
    if (!plain) {
      model_error(path,
                  fmt::format("weight_map gives {} for {}; a file name within the folder is needed",
                              file.dump(), tensor),
                  kIndexHint);
    }
    files[tensor] = file.get<std::string>();
  }
  if (files.empty()) model_error(path, "weight_map is empty", kIndexHint);
  return files;
}

}  // namespace

HfFolder::HfFolder(const std::string& path) : path_(path) {
  if (!folder_exists(path)) {
    model_error(path, file_exists(path) ? "is a file; a model folder is needed" : "no such folder",
                "give a folder in Hugging Face layout (config.json and safetensors)");
  }
  const bool single = file_exists(join_path(path, kSafetensorsName));
  sharded_ = file_exists(join_path(path, kSafetensorsIndexName));
  if (sharded_) {
    open_sharded();
  } else if (single) {
    add_file(kSafetensorsName);
  } else {
    no_weights(path);
  }
}

HfFolder::~HfFolder() = default;
HfFolder::HfFolder(HfFolder&&) noexcept = default;
HfFolder& HfFolder::operator=(HfFolder&&) noexcept = default;

void HfFolder::open_sharded() {
  const std::string index_path = join_path(path_, kSafetensorsIndexName);
  const auto file_of_tensor = read_weight_map(index_path);
  std::map<std::string, std::string> first_tensor_of;
  for (const auto& [tensor, file] : file_of_tensor) first_tensor_of.try_emplace(file, tensor);
  if (file_exists(join_path(path_, kSafetensorsName)) && first_tensor_of.count(kSafetensorsName) == 0) {
    model_error(path_, fmt::format("holds both {} and an index of other files", kSafetensorsName),
                fmt::format("remove {} or {}, whichever is stale", kSafetensorsName, kSafetensorsIndexName));
  }
  std::string missing;
  for (const auto& [file, tensor] : first_tensor_of) {
    if (!file_exists(join_path(path_, file))) missing += (missing.empty() ? "" : ", ") + file;
  }
  if (!missing.empty()) {
    model_error(index_path, "names files that are not there: " + missing, "incomplete download or copy?");
  }
  for (const auto& [file, tensor] : first_tensor_of) add_file(file);
  for (const auto& [tensor, file] : file_of_tensor) {
    const auto found = file_index_of_.find(tensor);
    if (found == file_index_of_.end() || file_names_[found->second] != file) {
      model_error(index_path, fmt::format("says that {} is in {}, but it is not there", tensor, file),
                  kIndexHint);
    }
  }
}

void HfFolder::add_file(const std::string& name) {
  files_.push_back(std::make_unique<SafetensorsFile>(join_path(path_, name)));
  file_names_.push_back(name);
  for (const auto& [tensor, info] : files_.back()->tensors()) {
    const auto [at, fresh] = file_index_of_.try_emplace(tensor, files_.size() - 1);
    if (!fresh) {
      model_error(path_,
                  fmt::format("tensor {} is in two files, {} and {}", tensor, file_names_[at->second], name),
                  "remove the file that is stale");
    }
  }
}

size_t HfFolder::index_of(const std::string& tensor) const {
  const auto found = file_index_of_.find(tensor);
  if (found == file_index_of_.end()) model_error(path_, fmt::format("has no tensor {}", tensor));
  return found->second;
}

bool HfFolder::has(const std::string& tensor) const {
  return file_index_of_.count(tensor) != 0;
}

const TensorInfo& HfFolder::info(const std::string& tensor) const {
  return files_[index_of(tensor)]->tensors().at(tensor);
}

std::string HfFolder::file_of(const std::string& tensor) const {
  return file_names_[index_of(tensor)];
}

const std::byte* HfFolder::bytes(const std::string& tensor) const {
  const SafetensorsFile& file = *files_[index_of(tensor)];
  return file.bytes(file.tensors().at(tensor));
}

std::vector<std::string> HfFolder::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& [tensor, file] : file_index_of_) names.push_back(tensor);
  return names;
}

std::vector<std::string> HfFolder::files() const {
  return file_names_;
}

bool HfFolder::sharded() const {
  return sharded_;
}

void HfFolder::read_rows(const std::string& tensor, int64_t row, int64_t rows, int64_t row_elements,
                         float* to) const {
  const TensorInfo& what = info(tensor);
  if (!is_weight_dtype(what.dtype)) {
    model_error(join_path(path_, file_of(tensor)),
                fmt::format("tensor {} is {}; F32, BF16 or F16 is needed", tensor, what.dtype));
  }
  LATHE_CHECK(row >= 0 && rows >= 0 && row_elements >= 0 && (row + rows) * row_elements <= what.elements(),
              "{}: rows {} + {} of {} elements", tensor, row, rows, row_elements);
  const int64_t offset = row * row_elements * safetensors_dtype_size(what.dtype);
  const std::byte* from = bytes(tensor) + offset;
  weights_to_float(what.dtype, from, rows * row_elements, to);
  const int64_t read = rows * row_elements * safetensors_dtype_size(what.dtype);
  files_[index_of(tensor)]->release(from, static_cast<uint64_t>(read));
}

}  // namespace lathe
