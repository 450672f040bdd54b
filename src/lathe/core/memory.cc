#include "lathe/core/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unordered_map>

namespace lathe {

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kWeights:
      return "weights";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kOptimizer:
      return "optimizer";
    case MemoryKind::kActivations:
      return "activations";
    case MemoryKind::kScratch:
      return "scratch";
  }
  return "?";
}

int64_t MemoryUse::total() const {
  int64_t sum = 0;
  for (const int64_t n : bytes) sum += n;
  return sum;
}

Tensor::~Tensor() {
  if (memory_ != nullptr) memory_->free(*this);
}

Tensor DeviceMemory::allocate(DType dtype, Shape shape, MemoryKind kind, const std::string& name) {
  LATHE_CHECK(shape.rank() > 0, "tensor '{}' without extents", name);
  const int64_t bytes = shape.size() * dtype_size(dtype);
  LATHE_CHECK(bytes >= 0, "tensor '{}' of {} bytes", name, bytes);
  Tensor tensor;
  const std::lock_guard lock(mutex_);
  tensor.view_ = View(acquire(bytes), dtype, shape);
  tensor.memory_ = this;
  tensor.kind_ = kind;
  tensor.id_ = next_id_++;
  live_.bytes[static_cast<size_t>(kind)] += bytes;
  live_tensors_.emplace(tensor.id_, LiveTensor{name, kind, bytes});
  if (live_.total() > peak_.total()) {
    peak_ = live_;
    at_peak_ = true;
  }
  return tensor;
}

void DeviceMemory::free(Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  keep_names_of_peak();
  const int64_t bytes = tensor.view_.bytes();
  live_.bytes[static_cast<size_t>(tensor.kind_)] -= bytes;
  live_tensors_.erase(tensor.id_);
  release(tensor.view_.data, bytes);
}

// The names alive at the peak are copied only when something is freed right after it, not at every allocation.
void DeviceMemory::keep_names_of_peak() {
  if (at_peak_) peak_tensors_ = live_tensors_;
  at_peak_ = false;
}

MemoryUse DeviceMemory::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

MemoryUse DeviceMemory::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::vector<LiveTensor> DeviceMemory::live_at_peak() const {
  const std::lock_guard lock(mutex_);
  std::vector<LiveTensor> out;
  for (const auto& [id, tensor] : at_peak_ ? live_tensors_ : peak_tensors_) out.push_back(tensor);
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return out;
}

void DeviceMemory::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = live_;
  at_peak_ = true;
}

namespace {

// Sizes are rounded up to 1, 1.25, 1.5 or 1.75 times a power of two, so that a freed block fits its successors.
int64_t size_class(int64_t bytes) {
  constexpr int64_t kSmallest = 256;
  if (bytes <= kSmallest) return kSmallest;
  int64_t power = kSmallest;
  while (power * 2 <= bytes) power *= 2;
  const int64_t quarter = power / 4;
  return (bytes + quarter - 1) / quarter * quarter;
}

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(bool poison) : poison_(poison) {}
  ~HostMemory() override {
    for (auto& [size, blocks] : free_) {
      for (std::byte* block : blocks) std::free(block);
    }
  }

  void copy_from_host(View to, const void* from) override {
    if (to.bytes() > 0) std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
  }
  void copy_to_host(void* to, ConstView from) override {
    if (from.bytes() > 0) std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
  }

 protected:
  std::byte* acquire(int64_t bytes) override {
    const int64_t size = size_class(bytes);
    std::byte* block = nullptr;
    if (auto& blocks = free_[size]; !blocks.empty()) {
      block = blocks.back();
      blocks.pop_back();
    } else {
      block = static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>((size + 63) / 64 * 64)));
      if (block == nullptr) throw std::bad_alloc();
    }
    // 0xFF bytes are a NaN in every float type and -1 in every integer type.
    if (poison_) std::memset(block, 0xFF, static_cast<size_t>(size));
    return block;
  }
  void release(std::byte* data, int64_t bytes) override { free_[size_class(bytes)].push_back(data); }

 private:
  bool poison_;
  std::unordered_map<int64_t, std::vector<std::byte*>> free_;
};

}  // namespace

std::unique_ptr<DeviceMemory> make_host_memory(bool poison) {
  return std::make_unique<HostMemory>(poison);
}

}  // namespace lathe
