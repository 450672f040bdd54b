#include "lathe/model/checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace {

std::string path_in(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

// Puts parts of Hugging Face tensors together from parts of parameters.
class TensorAssembler {
 public:
  TensorAssembler(const ParameterLayout& layout, const ParameterValues& values)
      : layout_(layout), values_(values) {
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      for (const HfSlice& slice : layout.parameters[i].slices) pieces_[slice.tensor].push_back({i, &slice});
    }
  }

  // The bytes of a tensor that a rank with this share writes.
  [[nodiscard]] std::optional<std::vector<TensorToWrite::Range>> owned(const std::string& tensor,
                                                                       const std::string& dtype,
                                                                       const ParameterShare& share) const {
    if (share.files.alone()) return {};
    const int64_t size = safetensors_dtype_size(dtype);
    std::vector<TensorToWrite::Range> ranges;
    for (const auto& [parameter, slice] : pieces_.at(tensor)) {
      const int64_t width = layout_.parameters[parameter].row_elements;
      const FlatShard here = share.elements(parameter);
      const int64_t from = std::max(here.begin, slice->row * width);
      const int64_t until = std::min(here.end, (slice->row + slice->rows) * width);
      if (from >= until) continue;
      const int64_t move = (slice->hf_row - slice->row) * width;
      ranges.push_back(
          {static_cast<uint64_t>((from + move) * size), static_cast<uint64_t>((until + move) * size)});
    }
    return ranges;
  }

  // `to` holds bytes [begin, begin + bytes) of the tensor as `dtype`; both are multiples of the dtype's size.
  void assemble(const std::string& tensor, const std::string& dtype, uint64_t begin, std::byte* to,
                uint64_t bytes) {
    const int64_t size = safetensors_dtype_size(dtype);
    const int64_t first = static_cast<int64_t>(begin) / size;
    const int64_t last = first + static_cast<int64_t>(bytes) / size;
    for (const auto& [parameter, slice] : pieces_.at(tensor)) {
      const int64_t width = layout_.parameters[parameter].row_elements;
      const int64_t from = std::max(first, slice->hf_row * width);
      const int64_t until = std::min(last, (slice->hf_row + slice->rows) * width);
      if (from >= until) continue;
      part_.resize(static_cast<size_t>(until - from));
      values_(parameter, from + (slice->row - slice->hf_row) * width, part_);
      if (dtype == "F16") check_f16(tensor);
      weights_from_float(dtype, part_.data(), until - from, to + (from - first) * size);
    }
  }

 private:
  void check_f16(const std::string& tensor) const {
    for (const float value : part_) {
      if (std::isfinite(value) && !std::isfinite(to_float(to_float16(value)))) {
        model_error(tensor, fmt::format("the value {} does not fit into F16, the dtype of the file", value),
                    "start from a bf16 or f32 copy of the model");
      }
    }
  }

  const ParameterLayout& layout_;
  const ParameterValues& values_;
  std::map<std::string, std::vector<std::pair<size_t, const HfSlice*>>> pieces_;
  std::vector<float> part_;
};

// What must not follow the weights: other copies of them, which are stale now, and the mark of a finished checkpoint.
bool is_left_behind(const std::string& name) {
  static constexpr std::array kEndings = std::to_array<std::string_view>(
      {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".gguf",
       ".h5", ".msgpack", ".onnx", ".partial"});
  if (name == "COMPLETE") return true;
  for (const std::string_view ending : kEndings) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

void remove_stale_weights(const std::string& folder, const std::vector<std::string>& kept, bool sharded) {
  const std::set<std::string> keep(kept.begin(), kept.end());
  for (const std::string& name : list_files(folder)) {
    const bool index = name == kSafetensorsIndexName && !sharded;
    const bool weights = name.starts_with("model") && name.ends_with(".safetensors") && keep.count(name) == 0;
    if (!index && !weights) continue;
    std::error_code code;
    std::filesystem::remove(path_in(folder, name), code);
    if (code) model_error(path_in(folder, name), "cannot be removed: " + code.message());
  }
}

}  // namespace

void read_parameter(const HfFolder& folder, const ParameterSpec& spec, std::span<float> to) {
  LATHE_CHECK(static_cast<int64_t>(to.size()) == spec.shape.size(), "{}: {} elements for {}", spec.name(),
              to.size(), spec.shape.text());
  for (const HfSlice& slice : spec.slices) {
    float* rows = to.data() + slice.row * spec.row_elements;
    folder.read_rows(slice.tensor, slice.hf_row, slice.rows, spec.row_elements, rows);
    for (int64_t i = 0; i < slice.rows * spec.row_elements; ++i) {
      if (std::isfinite(rows[i])) continue;
      model_error(path_in(folder.path(), folder.file_of(slice.tensor)),
                  fmt::format("tensor {} holds {} (element {}); finite weights are needed", slice.tensor,
                              rows[i], slice.hf_row * spec.row_elements + i),
                  "the checkpoint is broken: use an earlier one");
    }
  }
}

void export_model(const HfFolder& source, const ParameterLayout& layout, const ParameterValues& values,
                  const std::function<bool(const std::string& tensor)>& changed, const std::string& to,
                  const ParameterShare& share) {
  const std::vector<std::string> files = source.files();
  if (share.files.leads) remove_stale_weights(to, files, source.sharded());
  TensorAssembler assembler(layout, values);
  for (size_t i = 0; i < files.size(); ++i) {
    const SafetensorsFile& file = source.file(i);
    std::vector<TensorToWrite> tensors;
    for (const std::string& name : file.names_in_file_order()) {
      const TensorInfo& info = file.tensors().at(name);
      TensorToWrite tensor;
      tensor.name = name;
      tensor.dtype = info.dtype;
      tensor.shape = info.shape;
      tensor.source = file.bytes(info);
      tensor.source_bytes = info.bytes();
      const auto alias = layout.aliases.find(name);
      const std::string& origin = alias == layout.aliases.end() ? name : alias->second;
      if (layout.hf_tensors.count(origin) != 0 && changed(origin)) {
        tensor.source = nullptr;
        tensor.owned = assembler.owned(origin, info.dtype, share);
        tensor.produce_part = [&assembler, origin, dtype = info.dtype](uint64_t begin, std::byte* data,
                                                                       uint64_t bytes) {
          assembler.assemble(origin, dtype, begin, data, bytes);
        };
      }
      tensors.push_back(std::move(tensor));
    }
    std::map<std::string, std::string> metadata = file.metadata();
    metadata.try_emplace("format", "pt");  // transformers opens no file without it
    write_safetensors(path_in(to, files[i]), tensors, metadata, share.files);
  }
  if (!share.files.leads) return;
  if (source.sharded()) {
    copy_file_atomically(path_in(source.path(), kSafetensorsIndexName), path_in(to, kSafetensorsIndexName));
  }
  for (const std::string& name : list_files(source.path())) {
    if (!is_left_behind(name)) copy_file_atomically(path_in(source.path(), name), path_in(to, name));
  }
}

uint64_t exported_bytes(const HfFolder& source) {
  uint64_t bytes = 0;
  const auto add = [&](const std::string& name) {
    std::error_code code;
    const auto size = std::filesystem::file_size(path_in(source.path(), name), code);
    if (!code) bytes += size;
  };
  for (const std::string& name : source.files()) add(name);
  if (source.sharded()) add(kSafetensorsIndexName);
  for (const std::string& name : list_files(source.path())) {
    if (!is_left_behind(name)) add(name);
  }
  return bytes;
}

void write_hf_tensors(const std::string& path, const ParameterLayout& layout, const ParameterValues& values,
                      const std::function<bool(const std::string& tensor)>& included,
                      const ParameterShare& share) {
  TensorAssembler assembler(layout, values);
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, shape] : layout.hf_tensors) {
    if (!included(name)) continue;
    TensorToWrite tensor;
    tensor.name = name;
    tensor.dtype = "F32";
    for (int i = 0; i < shape.rank(); ++i) tensor.shape.push_back(shape[i]);
    tensor.owned = assembler.owned(name, "F32", share);
    tensor.produce_part = [&assembler, name = name](uint64_t begin, std::byte* data, uint64_t bytes) {
      assembler.assemble(name, "F32", begin, data, bytes);
    };
    tensors.push_back(std::move(tensor));
  }
  write_safetensors(path, tensors, {{"format", "pt"}}, share.files);
}

}  // namespace lathe
