#include "support/kernel_test.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "lathe/core/rng.h"
#include "lathe/kernels/access.h"

namespace lathe::test {

HostArray random_array(const Shape& shape, uint64_t seed, double scale) {
  HostArray out(shape);
  const CounterRng rng(seed, 1);
  for (int64_t i = 0; i < out.size(); ++i) out[i] = scale * rng.normal(static_cast<uint64_t>(i));
  return out;
}

HostArray uniform_array(const Shape& shape, uint64_t seed, double low, double high) {
  HostArray out(shape);
  const CounterRng rng(seed, 2);
  for (int64_t i = 0; i < out.size(); ++i)
    out[i] = low + (high - low) * rng.uniform(static_cast<uint64_t>(i));
  return out;
}

HostArray integer_array(const Shape& shape, const std::vector<int32_t>& values) {
  return {shape, std::vector<double>(values.begin(), values.end())};
}

Device make_ref_device(DType float_type) {
  return Device({.name = "ref", .threads = 1, .isa = Isa::kAvx2, .poison = true, .float_type = float_type});
}

Device make_cpu_device(Isa isa, int threads) {
  return Device({.name = "cpu", .threads = threads, .isa = isa, .poison = true, .float_type = DType::kF32});
}

std::vector<Isa> isas_at_hand() {
  std::vector<Isa> out{Isa::kAvx2};
  if (const Isa best = chosen_isa(); best != Isa::kAvx2) out.push_back(best);
  return out;
}

Tensor to_device(const Device& device, const HostArray& array) {
  return to_device(device, array, device.float_type());
}

Tensor to_device(const Device& device, const HostArray& array, DType dtype) {
  Tensor out = device.memory->allocate(dtype, array.shape, MemoryKind::kActivations, "test");
  const View view = out;
  for (int64_t i = 0; i < array.size(); ++i) {
    switch (dtype) {
      case DType::kF64:
        elements<double>(view)[i] = array[i];
        break;
      case DType::kF32:
        elements<float>(view)[i] = static_cast<float>(array[i]);
        break;
      case DType::kBF16:
        elements<BFloat16>(view)[i] = to_bfloat16(static_cast<float>(array[i]));
        break;
      case DType::kF16:
        elements<Float16>(view)[i] = to_float16(static_cast<float>(array[i]));
        break;
      case DType::kI64:
        elements<int64_t>(view)[i] = static_cast<int64_t>(array[i]);
        break;
      case DType::kI32:
        elements<int32_t>(view)[i] = static_cast<int32_t>(array[i]);
        break;
      case DType::kI16:
        elements<int16_t>(view)[i] = static_cast<int16_t>(array[i]);
        break;
      case DType::kU8:
        elements<uint8_t>(view)[i] = static_cast<uint8_t>(array[i]);
        break;
    }
  }
  return out;
}

Tensor poisoned(const Device& device, const Shape& shape) {
  return poisoned(device, shape, device.float_type());
}

Tensor poisoned(const Device& device, const Shape& shape, DType dtype) {
  return device.memory->allocate(dtype, shape, MemoryKind::kActivations, "test output");
}

HostArray to_host(const Device& /*device*/, ConstView view) {
  HostArray out(view.shape);
  for (int64_t i = 0; i < out.size(); ++i) {
    switch (view.dtype) {
      case DType::kF64:
        out[i] = elements<double>(view)[i];
        break;
      case DType::kF32:
        out[i] = elements<float>(view)[i];
        break;
      case DType::kBF16:
        out[i] = to_float(elements<BFloat16>(view)[i]);
        break;
      case DType::kF16:
        out[i] = to_float(elements<Float16>(view)[i]);
        break;
      case DType::kI64:
        out[i] = static_cast<double>(elements<int64_t>(view)[i]);
        break;
      case DType::kI32:
        out[i] = elements<int32_t>(view)[i];
        break;
      case DType::kI16:
        out[i] = elements<int16_t>(view)[i];
        break;
      case DType::kU8:
        out[i] = elements<uint8_t>(view)[i];
        break;
    }
  }
  return out;
}

namespace {

double dot(const HostArray& a, const HostArray& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double norm(const HostArray& a) {
  return std::sqrt(dot(a, a));
}

}  // namespace

void check_gradients(const std::vector<std::string>& input_names, const std::vector<HostArray>& inputs,
                     const Forward& forward, const Backward& backward, double tolerance, double step) {
  std::vector<HostArray> cotangents;
  for (const HostArray& output : forward(inputs)) {
    cotangents.push_back(random_array(output.shape, 1000 + cotangents.size()));
  }
  const std::vector<HostArray> gradients = backward(inputs, cotangents);
  ASSERT_EQ(gradients.size(), inputs.size());
  // The pairing of the outputs with the cotangents, along direction `d` of input i.
  const auto slope = [&](size_t i, const HostArray& d) {
    std::array<double, 2> sides{};
    for (const int side : {0, 1}) {
      std::vector<HostArray> moved = inputs;
      for (int64_t j = 0; j < d.size(); ++j) moved[i][j] += (side == 0 ? step : -step) * d[j];
      const std::vector<HostArray> outputs = forward(moved);
      for (size_t o = 0; o < outputs.size(); ++o)
        sides[static_cast<size_t>(side)] += dot(outputs[o], cotangents[o]);
    }
    return (sides[0] - sides[1]) / (2 * step);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (gradients[i].shape.rank() == 0) continue;
    ASSERT_EQ(gradients[i].size(), inputs[i].size()) << input_names[i];
    const double size = norm(gradients[i]);
    EXPECT_GT(size, 0) << input_names[i] << ": gradient is all zero: nothing was tested";
    if (inputs[i].size() <= 200) {
      HostArray difference(inputs[i].shape);
      for (int64_t j = 0; j < inputs[i].size(); ++j) {
        HostArray unit(inputs[i].shape);
        unit[j] = 1;
        difference[j] = slope(i, unit) - gradients[i][j];
      }
      EXPECT_LE(norm(difference), tolerance * size) << "gradient of " << input_names[i];
    } else {
      for (uint64_t trial = 0; trial < 4; ++trial) {
        HostArray d = random_array(inputs[i].shape, 2000 + trial);
        const double length = norm(d);
        for (double& x : d.values) x /= length;
        EXPECT_NEAR(slope(i, d), dot(gradients[i], d), tolerance * size) << "gradient of " << input_names[i];
      }
    }
  }
}

void expect_near(const HostArray& actual, const HostArray& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double error = 0;
  double size = 0;
  double worst = -1;
  int64_t where = 0;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double gap = std::abs(actual[i] - expected[i]);
    ASSERT_TRUE(std::isfinite(gap)) << what << "[" << i << "] is " << actual[i] << ", expected "
                                    << expected[i];
    error += gap * gap;
    size += expected[i] * expected[i];
    if (gap > worst) {
      worst = gap;
      where = i;
    }
  }
  EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(size) + std::numeric_limits<float>::min())
      << what << ": worst at [" << where << "]: " << actual[where] << ", expected " << expected[where];
}

void expect_same(const HostArray& actual, const HostArray& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (int64_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint64_t>(actual[i]), std::bit_cast<uint64_t>(expected[i]))
        << what << "[" << i << "]: " << actual[i] << " and " << expected[i];
  }
}

std::vector<SegmentLayout> segment_layouts(int64_t tokens) {
  const auto n = static_cast<size_t>(tokens);
  std::vector<SegmentLayout> out;
  out.push_back({"one", std::vector<int32_t>(n, 1)});
  out.push_back({"padding", std::vector<int32_t>(n, 0)});
  std::vector<int32_t> several(n, 0);
  std::vector<int32_t> shorts(n, 0);
  std::vector<int32_t> late(n, 0);
  for (size_t i = 0; i < n; ++i) {
    // two segments, a gap of padding, a third one, padding at the end
    if (i < n / 3) {
      several[i] = 1;
    } else if (i < n / 2) {
      several[i] = 2;
    } else if (i >= n / 2 + n / 10 && i < n - n / 8) {
      several[i] = 3;
    }
    // lengths 1, 2, 3, 1, 2, 3, ...
    const size_t in_six = i % 6;
    shorts[i] = static_cast<int32_t>(i / 6 * 3 + (in_six < 1 ? 1 : in_six < 3 ? 2 : 3));
    if (i >= n / 4) late[i] = i < n / 4 + 5 ? 1 : 2;
  }
  out.push_back({"several", several});
  out.push_back({"short", shorts});
  out.push_back({"late", late});
  return out;
}

}  // namespace lathe::test
