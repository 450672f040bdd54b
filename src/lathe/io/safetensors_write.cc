#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "lathe/core/dtype.h"
#include "lathe/core/error.h"
#include "lathe/io/files.h"
#include "lathe/io/safetensors.h"

namespace lathe {
namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump();
}

uint64_t bytes_to_write(const TensorToWrite& tensor) {
  if (tensor.source != nullptr) return tensor.source_bytes;
  int64_t bytes = safetensors_dtype_size(tensor.dtype);
  if (!tensor.produce && !tensor.produce_part) bytes = 0;  // an empty tensor that is copied
  for (const int64_t extent : tensor.shape) bytes *= extent;
  return static_cast<uint64_t>(bytes);
}

// Written by hand: the usual order of the keys, no spaces, so that a file that was read is written back the
// same.
std::string header_text(const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += R"("__metadata__":{)";
    for (const auto& [key, value] : metadata) text += quoted(key) + ":" + quoted(value) + ",";
    text.back() = '}';
    text += ",";
  }
  uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const uint64_t end = offset + bytes_to_write(tensor);
    std::string extents;
    for (const int64_t extent : tensor.shape)
      extents += (extents.empty() ? "" : ",") + std::to_string(extent);
    text += fmt::format(R"({}:{{"dtype":{},"shape":[{}],"data_offsets":[{},{}]}},)", quoted(tensor.name),
                        quoted(tensor.dtype), extents, offset, end);
    offset = end;
  }
  if (text.back() == ',') text.pop_back();
  text += "}";
  while (text.size() % 8 != 0) text += ' ';
  return text;
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void widen(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(load<T>(from + i * static_cast<int64_t>(sizeof(T))));
}

template <typename T, typename Convert>
void narrow(const float* from, int64_t count, std::byte* to, const Convert& convert) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = convert(from[i]);
    std::memcpy(to + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

void write_range(SharedFileWriter& writer, uint64_t offset, const TensorToWrite& tensor,
                 const TensorToWrite::Range& range) {
  std::vector<std::byte> buffer(std::min(range.end - range.begin, kTensorPartBytes));
  for (uint64_t begin = range.begin; begin < range.end; begin += buffer.size()) {
    const uint64_t part = std::min<uint64_t>(range.end - begin, buffer.size());
    tensor.produce_part(begin, buffer.data(), part);
    writer.write_at(offset + begin, buffer.data(), part);
  }
}

void write_together(const std::string& path, const std::vector<TensorToWrite>& tensors,
                    const std::string& header, const WriteShare& share) {
  uint64_t offset = sizeof(uint64_t) + header.size();
  uint64_t total = offset;
  for (const TensorToWrite& tensor : tensors) total += bytes_to_write(tensor);
  SharedFileWriter writer(path, total, share);
  if (share.leads) {
    const uint64_t header_bytes = header.size();
    writer.write_at(0, &header_bytes, sizeof header_bytes);
    writer.write_at(sizeof header_bytes, header.data(), header.size());
  }
  for (const TensorToWrite& tensor : tensors) {
    const uint64_t bytes = bytes_to_write(tensor);
    if (tensor.owned.has_value()) {
      for (const TensorToWrite::Range& range : *tensor.owned) write_range(writer, offset, tensor, range);
    } else if (share.leads && tensor.source != nullptr) {
      writer.write_at(offset, tensor.source, bytes);
    } else if (share.leads && tensor.produce && bytes > 0) {
      std::vector<std::byte> buffer(bytes);
      tensor.produce(buffer.data());
      writer.write_at(offset, buffer.data(), bytes);
    } else if (share.leads && tensor.produce_part) {
      write_range(writer, offset, tensor, {0, bytes});
    }
    offset += bytes;
  }
  writer.commit();
}

}  // namespace

int64_t safetensors_dtype_size(const std::string& dtype) {
  static const std::map<std::string, int64_t> kSizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
  const auto found = kSizes.find(dtype);
  return found == kSizes.end() ? 0 : found->second;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

bool is_weight_dtype(const std::string& dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

void weights_to_float(const std::string& dtype, const std::byte* from, int64_t count, float* to) {
  if (dtype == "F32") {
    if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  } else if (dtype == "BF16") {
    widen<BFloat16>(from, count, to);
  } else {
    LATHE_CHECK(dtype == "F16", "dtype {}", dtype);
    widen<Float16>(from, count, to);
  }
}

void weights_from_float(const std::string& dtype, const float* from, int64_t count, std::byte* to) {
  if (dtype == "F32") {
    if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  } else if (dtype == "BF16") {
    narrow<BFloat16>(from, count, to, [](float x) { return to_bfloat16(x); });
  } else {
    LATHE_CHECK(dtype == "F16", "dtype {}", dtype);
    narrow<Float16>(from, count, to, [](float x) { return to_float16(x); });
  }
}

void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata, const WriteShare& share) {
  std::set<std::string> names;
  for (const TensorToWrite& tensor : tensors) {
    LATHE_CHECK(names.insert(tensor.name).second, "{} twice in {}", tensor.name, path);
  }
  const std::string header = header_text(tensors, metadata);
  if (!share.alone()) return write_together(path, tensors, header, share);
  AtomicFileWriter writer(path);
  const uint64_t header_bytes = header.size();
  writer.write(&header_bytes, sizeof header_bytes);
  writer.write(header.data(), header.size());
  std::vector<std::byte> buffer;
  for (const TensorToWrite& tensor : tensors) {
    const uint64_t bytes = bytes_to_write(tensor);
    if (tensor.source != nullptr || bytes == 0) {
      writer.write(tensor.source, bytes);
      continue;
    }
    buffer.resize(tensor.produce ? bytes : std::min(bytes, kTensorPartBytes));
    if (tensor.produce) tensor.produce(buffer.data());
    for (uint64_t begin = 0; begin < bytes; begin += buffer.size()) {
      const uint64_t part = std::min<uint64_t>(bytes - begin, buffer.size());
      if (!tensor.produce) tensor.produce_part(begin, buffer.data(), part);
      writer.write(buffer.data(), part);
    }
  }
  writer.commit();
}

}  // namespace lathe
