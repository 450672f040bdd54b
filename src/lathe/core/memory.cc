#include "lathe/core/memory.h"

#include <algorithm>

#include <fmt/format.h>

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

std::string bytes_text(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", b / (1 << 30));
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.1f} MiB", b / (1 << 20));
  return fmt::format("{:.1f} KiB", b / (1 << 10));
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

}  // namespace lathe
