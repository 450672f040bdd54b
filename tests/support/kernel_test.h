// Helpers of kernel tests: host arrays, devices, random data, finite differences, comparisons.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lathe/kernels/device.h"

namespace lathe::test {

// A tensor on the host in f64, whatever its type on the device.
struct HostArray {
  Shape shape;
  std::vector<double> values;

  HostArray() = default;
  explicit HostArray(const Shape& s) : shape(s), values(static_cast<size_t>(s.size()), 0.0) {}
  HostArray(const Shape& s, std::vector<double> v) : shape(s), values(std::move(v)) {}
  double& operator[](int64_t i) { return values[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(values.size()); }
};

// Normal(0, scale) values; the same for the same (shape size, seed).
[[nodiscard]] HostArray random_array(const Shape& shape, uint64_t seed, double scale = 1);
// Uniform in [low, high).
[[nodiscard]] HostArray uniform_array(const Shape& shape, uint64_t seed, double low, double high);
[[nodiscard]] HostArray integer_array(const Shape& shape, const std::vector<int32_t>& values);

// Devices with poisoned memory. ref computes in f64 or f32.
[[nodiscard]] Device make_ref_device(DType float_type = DType::kF64);
[[nodiscard]] Device make_cpu_device(Isa isa, int threads = 2);
// The levels to test on this machine: avx2, and the best one that LATHE_ISA and the processor allow.
[[nodiscard]] std::vector<Isa> isas_at_hand();

// Copies to the device as `dtype` (default: the device's float type), as activations.
[[nodiscard]] Tensor to_device(const Device& device, const HostArray& array);
[[nodiscard]] Tensor to_device(const Device& device, const HostArray& array, DType dtype);
// An output tensor of the device's float type, full of NaN.
[[nodiscard]] Tensor poisoned(const Device& device, const Shape& shape);
[[nodiscard]] Tensor poisoned(const Device& device, const Shape& shape, DType dtype);
[[nodiscard]] HostArray to_host(const Device& device, ConstView view);

// Backward against central differences of forward, both in f64. `forward` maps inputs to outputs; `backward` maps inputs
// and cotangents (one per output, random) to one gradient per input (an empty shape: not differentiated, not checked).
// Every element of an input of up to 200 elements is differenced, larger ones along random directions.
// Tolerance: |difference|_2 / |gradient|_2 <= tolerance per input, and the gradient must not be all zero.
using Forward = std::function<std::vector<HostArray>(const std::vector<HostArray>& inputs)>;
using Backward = std::function<std::vector<HostArray>(const std::vector<HostArray>& inputs,
                                                      const std::vector<HostArray>& cotangents)>;
void check_gradients(const std::vector<std::string>& input_names, const std::vector<HostArray>& inputs,
                     const Forward& forward, const Backward& backward, double tolerance = 1e-7,
                     double step = 1e-5);

// |actual - expected|_2 <= tolerance |expected|_2 (+ tiny), all finite; the message names `what` and the worst element.
void expect_near(const HostArray& actual, const HostArray& expected, double tolerance,
                 const std::string& what);
// The same bits.
void expect_same(const HostArray& actual, const HostArray& expected, const std::string& what);

// Segment layouts for sequence kernels, by name: one segment; several with gaps of padding; starts inside chunks; length-1
// segments; all padding; padding at the start. Each is an i32 array [tokens].
struct SegmentLayout {
  std::string name;
  std::vector<int32_t> segments;
};
[[nodiscard]] std::vector<SegmentLayout> segment_layouts(int64_t tokens);

}  // namespace lathe::test
