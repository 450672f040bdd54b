// A model folder in Hugging Face layout: config.json, model.safetensors or model-*.safetensors with an index.
// Tensors are found by name through the index, headers are checked before a byte of data is read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lathe/io/safetensors.h"

namespace lathe {

class HfFolder {
 public:
  // Model errors: no such folder, no safetensors, unreadable index, an index that names a missing file or
  // tensor, a tensor that two files hold.
  explicit HfFolder(const std::string& path);
  ~HfFolder();
  HfFolder(HfFolder&&) noexcept;
  HfFolder& operator=(HfFolder&&) noexcept;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool has(const std::string& tensor) const;
  [[nodiscard]] const TensorInfo& info(const std::string& tensor) const;  // model error if absent
  [[nodiscard]] std::string file_of(const std::string& tensor) const;     // file name within the folder
  [[nodiscard]] const std::byte* bytes(const std::string& tensor) const;  // mapped; info(tensor).bytes() long
  [[nodiscard]] std::vector<std::string> tensor_names() const;            // sorted
  [[nodiscard]] std::vector<std::string> files() const;                   // safetensors files, in order
  [[nodiscard]] bool sharded() const;                                     // there is an index
  [[nodiscard]] const SafetensorsFile& file(size_t index) const { return *files_[index]; }  // of files()

  // rows [row, row + rows) of `row_elements` each, converted to f32 (from F32, BF16, F16).
  void read_rows(const std::string& tensor, int64_t row, int64_t rows, int64_t row_elements, float* to) const;

 private:
  [[nodiscard]] size_t index_of(const std::string& tensor) const;
  void open_sharded();
  void add_file(const std::string& name);

  std::string path_;
  std::map<std::string, size_t> file_index_of_;
  std::vector<std::string> file_names_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  bool sharded_ = false;
};

inline constexpr const char* kSafetensorsName = "model.safetensors";
inline constexpr const char* kSafetensorsIndexName = "model.safetensors.index.json";

}  // namespace lathe
