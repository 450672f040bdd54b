// What a model folder is recognised by: cheap, for it is done at every start.
#include <algorithm>
#include <filesystem>
#include <string_view>

#include "lathe/io/files.h"
#include "lathe/loop/train_state.h"

namespace lathe {
namespace {

// FNV-1a, 64 bits.
class Hash {
 public:
  void add(const std::byte* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      value_ = (value_ ^ static_cast<uint64_t>(data[i])) * 0x100000001B3U;
    }
  }
  void add(std::string_view text) {
    add(static_cast<const std::byte*>(static_cast<const void*>(text.data())), text.size());
    const std::byte end{0};
    add(&end, 1);
  }
  [[nodiscard]] std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0xCBF29CE484222325U;
};

// Some bytes of a tensor, spread over all of it; all of a small one.
void add_samples(Hash& hash, const std::byte* data, size_t bytes) {
  constexpr size_t kSamples = 8;
  constexpr size_t kSampleBytes = 64;
  if (bytes <= kSamples * kSampleBytes) {
    hash.add(data, bytes);
    return;
  }
  for (size_t i = 0; i < kSamples; ++i) {
    hash.add(data + (bytes - kSampleBytes) / (kSamples - 1) * i, kSampleBytes);
  }
}

}  // namespace

BaseModel base_model(const LoadedModel& model) {
  Hash config;
  Hash tensors;
  Hash weights;
  config.add(read_file((std::filesystem::path(model.folder->path()) / "config.json").string()));
  for (const std::string& name : model.folder->tensor_names()) {
    const TensorInfo& info = model.folder->info(name);
    tensors.add(name);
    tensors.add(info.dtype);
    tensors.add(shape_text(info.shape));
    add_samples(weights, model.folder->bytes(name), info.bytes());
  }
  return {.config = config.text(), .tensors = tensors.text(), .weights = weights.text()};
}

}  // namespace lathe
