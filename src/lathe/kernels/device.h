// A device: memory, a queue, and a table of kernels. Trainer code is written against this and nothing below it.
#pragma once

#include <memory>
#include <string>

#include "lathe/core/memory.h"
#include "lathe/core/parallel.h"
#include "lathe/kernels/kernel_table.h"

namespace lathe {

struct DeviceOptions {
  std::string name = "cpu";  // cpu, ref; plan: counts memory, computes nothing
  int threads = 1;
  Isa isa = Isa::kAvx2;  // cpu only; see chosen_isa()
  // False: settle_isa() follows before the first kernel. oneDNN takes one choice a process.
  bool isa_is_settled = true;
  bool poison = false;  // fill new memory with NaN (tests)
  // Type of activations and gradients: f32; f64 on ref and plan alone, for finite differences.
  DType float_type = DType::kF32;
};

struct Device {
  explicit Device(const DeviceOptions& options);  // throws a config error for an unknown name

  DeviceOptions options;
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<Queue> queue;
  KernelTable kernels;

  // cpu: the kernels of this instruction set.
  void settle_isa(Isa isa);
  [[nodiscard]] DType float_type() const { return options.float_type; }
  [[nodiscard]] Tensor activation(const Shape& shape, const std::string& name) const {
    return memory->allocate(options.float_type, shape, MemoryKind::kActivations, name);
  }
  [[nodiscard]] Tensor indices(const Shape& shape, const std::string& name) const {
    return memory->allocate(DType::kI32, shape, MemoryKind::kActivations, name);
  }
  [[nodiscard]] Tensor scratch(int64_t elements, const std::string& name) const {
    return memory->allocate(options.float_type, Shape{elements}, MemoryKind::kScratch, name);
  }
};

}  // namespace lathe
