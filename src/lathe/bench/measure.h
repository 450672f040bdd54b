// Timing and random inputs for benchmarks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lathe/kernels/device.h"

namespace lathe {

[[nodiscard]] double seconds_of(const std::function<void()>& work);
[[nodiscard]] double median(std::vector<double> values);  // of at least one

// Normal(0, scale) values in the device's float type; the same on every device for the same name.
[[nodiscard]] Tensor random_tensor(const Device& device, const Shape& shape, const std::string& name,
                                   double scale = 1);
// Uniform in [low, high).
[[nodiscard]] Tensor uniform_tensor(const Device& device, const Shape& shape, const std::string& name,
                                    double low, double high);
// Segments 1..count of (nearly) equal length over `tokens`.
[[nodiscard]] Tensor segment_tensor(const Device& device, int64_t tokens, int64_t count);
// On the host, whatever the device's type.
[[nodiscard]] std::vector<double> host_values(const Device& device, ConstView view);

}  // namespace lathe
