// safetensors files: u64 little-endian header length, JSON header, raw little-endian row-major data.
// The reader maps the file and trusts nothing: header length against the file size, offsets inside the data,
// sizes equal to shape times dtype (overflow checked), no overlap, no duplicate names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/io/files.h"

namespace lathe {

struct TensorInfo {
  std::string dtype;  // as in the file: "F32", "BF16", "F16", "I64", "F8_E4M3", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // within the file
  uint64_t end = 0;
  [[nodiscard]] int64_t elements() const;
  [[nodiscard]] uint64_t bytes() const { return end - begin; }
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);  // model errors name the file and the fault
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // May be misaligned: copy, do not cast.
  [[nodiscard]] const std::byte* bytes(const TensorInfo& info) const { return mapping_ + info.begin; }
  // Bytes that were read and are not needed soon: the pages that hold them leave memory, and come back when read again.
  void release(const std::byte* from, uint64_t bytes) const;
  [[nodiscard]] std::vector<std::string> names_in_file_order() const;  // by where the data lies

 private:
  void check_header_length(uint64_t header_bytes) const;
  void read_header(uint64_t header_bytes);
  void check_coverage(uint64_t data_begin) const;

  std::string path_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  const std::byte* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

// What to write for one tensor, in one of three ways. `produce` fills a buffer of elements(shape) * size(dtype) bytes;
// `produce_part` fills bytes [begin, begin + bytes) of it, called in order for parts of at most kTensorPartBytes, so that a
// large tensor is never in memory twice; or `source` and `source_bytes` are set and the bytes there are written as they
// are (any dtype). Tensors are asked for in the order of the list, each once.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::function<void(std::byte* to)> produce;
  const std::byte* source = nullptr;
  uint64_t source_bytes = 0;
  std::function<void(uint64_t begin, std::byte* to, uint64_t bytes)> produce_part = {};
  // Several processes write the file: the bytes of the tensor that this one writes, asked for in these runs; absent: the
  // leading one writes them all.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::optional<std::vector<Range>> owned = {};
};
inline constexpr uint64_t kTensorPartBytes = uint64_t{4} << 20;  // a multiple of every dtype's size

// Writes beside `path`, flushes to disk, then renames. A full disk is a retryable error, any other failure a
// model error; nothing half written stays.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata, const WriteShare& share = {});

[[nodiscard]] int64_t safetensors_dtype_size(const std::string& dtype);   // 0 if unknown
[[nodiscard]] std::string shape_text(const std::vector<int64_t>& shape);  // "[2, 3]"

// Between f32 and the three dtypes a decoder's weights may have; unaligned on the byte side. dtype: "F32",
// "BF16", "F16".
[[nodiscard]] bool is_weight_dtype(const std::string& dtype);
void weights_to_float(const std::string& dtype, const std::byte* from, int64_t count, float* to);
void weights_from_float(const std::string& dtype, const float* from, int64_t count,
                        std::byte* to);  // nearest even

}  // namespace lathe
