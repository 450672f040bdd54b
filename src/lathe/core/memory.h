// Device memory: who holds how much, by kind; and Tensor, which owns a piece of it.
// One DeviceMemory per device; it is used from the host thread and the device thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lathe/core/view.h"

namespace lathe {

enum class MemoryKind : uint8_t { kWeights, kGradients, kOptimizer, kActivations, kScratch };
inline constexpr int kMemoryKinds = 5;
[[nodiscard]] const char* memory_kind_name(MemoryKind kind);

// "1.59 GiB", "12.3 MiB".
[[nodiscard]] std::string bytes_text(int64_t bytes);

struct MemoryUse {
  std::array<int64_t, kMemoryKinds> bytes{};  // by MemoryKind
  [[nodiscard]] int64_t total() const;
  [[nodiscard]] int64_t of(MemoryKind kind) const { return bytes[static_cast<size_t>(kind)]; }
};

class DeviceMemory;

// Owns device memory; frees it when destroyed. Move-only.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept { swap(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor taken(std::move(other));
    swap(taken);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor();

  [[nodiscard]] View view() const { return view_; }
  // A tensor is used as its view.
  operator View() const { return view_; }       // NOLINT(google-explicit-constructor)
  operator ConstView() const { return view_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] bool empty() const { return view_.empty(); }
  void reset() { *this = Tensor(); }

 private:
  friend class DeviceMemory;
  void swap(Tensor& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(view_, other.view_);
    std::swap(kind_, other.kind_);
    std::swap(id_, other.id_);
  }
  DeviceMemory* memory_ = nullptr;
  View view_;
  MemoryKind kind_ = MemoryKind::kScratch;
  int64_t id_ = 0;
};

// A live allocation, as reported for the moment of the peak.
struct LiveTensor {
  std::string name;
  MemoryKind kind = MemoryKind::kScratch;
  int64_t bytes = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Contents are undefined (poisoned when the device was made so). Shapes with a zero extent are fine.
  [[nodiscard]] Tensor allocate(DType dtype, Shape shape, MemoryKind kind, const std::string& name);

  virtual void copy_from_host(View to, const void* from) = 0;
  virtual void copy_to_host(void* to, ConstView from) = 0;

  [[nodiscard]] MemoryUse live() const;
  [[nodiscard]] MemoryUse peak() const;  // use by kind at the moment when the total was largest
  [[nodiscard]] std::vector<LiveTensor> live_at_peak() const;  // largest first
  void reset_peak();

 protected:
  // Called with the lock held; 64-byte aligned.
  virtual std::byte* acquire(int64_t bytes) = 0;
  virtual void release(std::byte* data, int64_t bytes) = 0;

 private:
  friend class Tensor;
  void free(Tensor& tensor);
  void keep_names_of_peak();

  mutable std::mutex mutex_;
  std::map<int64_t, LiveTensor> live_tensors_;
  std::map<int64_t, LiveTensor> peak_tensors_;
  int64_t next_id_ = 1;
  MemoryUse live_;
  MemoryUse peak_;
  bool at_peak_ = true;  // nothing was freed since the peak: live_tensors_ are its names
};

// Memory of this machine (host_memory.h). poison: fill every new block with NaN patterns (tests; finds reads of what
// nobody wrote).
[[nodiscard]] std::unique_ptr<DeviceMemory> make_host_memory(bool poison = false);
// Counts what is allocated and holds none of it: nothing may be read or written, copies to the host give zeros.
[[nodiscard]] std::unique_ptr<DeviceMemory> make_counting_memory();

}  // namespace lathe
