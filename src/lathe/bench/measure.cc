#include "lathe/bench/measure.h"

#include <algorithm>

#include "lathe/core/clock.h"
#include "lathe/core/rng.h"

namespace lathe {
namespace {

Tensor filled(const Device& device, const Shape& shape, const std::string& name,
              const std::function<double(const CounterRng&, uint64_t)>& value) {
  const CounterRng rng(1, stream_of(name));
  Tensor out = device.activation(shape, name);
  if (device.options.name == "plan") return out;
  const auto count = static_cast<size_t>(shape.size());
  if (device.float_type() == DType::kF64) {
    std::vector<double> host(count);
    // Rounded to f32, so that the reference gets the same numbers.
    for (size_t i = 0; i < count; ++i) host[i] = static_cast<float>(value(rng, i));
    device.memory->copy_from_host(out, host.data());
  } else {
    std::vector<float> host(count);
    for (size_t i = 0; i < count; ++i) host[i] = static_cast<float>(value(rng, i));
    device.memory->copy_from_host(out, host.data());
  }
  return out;
}

}  // namespace

double seconds_of(const std::function<void()>& work) {
  const double start = steady_seconds();
  work();
  return steady_seconds() - start;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Tensor random_tensor(const Device& device, const Shape& shape, const std::string& name, double scale) {
  return filled(device, shape, name,
                [=](const CounterRng& rng, uint64_t i) { return scale * rng.normal(i); });
}

Tensor uniform_tensor(const Device& device, const Shape& shape, const std::string& name, double low,
                      double high) {
  return filled(device, shape, name,
                [=](const CounterRng& rng, uint64_t i) { return low + (high - low) * rng.uniform(i); });
}

Tensor segment_tensor(const Device& device, int64_t tokens, int64_t count) {
  if (device.options.name == "plan") return device.indices(Shape{tokens}, "segments");
  std::vector<int32_t> host(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    host[static_cast<size_t>(t)] = static_cast<int32_t>(t * count / tokens + 1);
  }
  Tensor out = device.indices(Shape{tokens}, "segments");
  device.memory->copy_from_host(out, host.data());
  return out;
}

std::vector<double> host_values(const Device& device, ConstView view) {
  std::vector<double> out(static_cast<size_t>(view.size()));
  if (view.dtype == DType::kF64) {
    device.memory->copy_to_host(out.data(), view);
    return out;
  }
  std::vector<float> narrow(out.size());
  device.memory->copy_to_host(narrow.data(), view);
  std::copy(narrow.begin(), narrow.end(), out.begin());
  return out;
}

}  // namespace lathe
