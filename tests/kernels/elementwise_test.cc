#include "lathe/kernels/elementwise.h"

#include <cmath>

#include <fmt/format.h>

#include "kernels/parity.h"

namespace lathe::test {
namespace {

const std::vector<int64_t> kSizes{0, 1, 2, 7, 8, 15, 16, 17, 63, 65, 200, 40000};

std::vector<Device> all_devices() {
  std::vector<Device> out;
  out.push_back(make_ref_device());
  out.push_back(make_ref_device(DType::kF32));
  for (const Isa isa : isas_at_hand()) out.push_back(make_cpu_device(isa));
  return out;
}

TEST(Fill, EveryType) {
  for (const Device& device : all_devices()) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kBF16}) {
      for (const int64_t n : kSizes) {
        const double value = dtype == DType::kI32 ? -3 : -2.5;
        const Tensor x = poisoned(device, Shape{n}, dtype);
        device.kernels.fill(*device.queue, value, x);
        expect_same(to_host(device, x),
                    HostArray(Shape{n}, std::vector<double>(static_cast<size_t>(n), value)),
                    fmt::format("{} of {}", n, dtype_name(dtype)));
      }
    }
  }
}

TEST(Add, AgreesAndMayBeInPlace) {
  for (const int64_t n : kSizes) {
    const HostArray a = random_array(Shape{n}, 1);
    const HostArray b = random_array(Shape{n}, 2);
    expect_parity(fmt::format("{}", n), [&](const Device& d) {
      const Tensor left = to_device(d, a);
      const Tensor right = to_device(d, b);
      const Tensor out = poisoned(d, Shape{n});
      d.kernels.add(*d.queue, left, right, out);
      d.kernels.add(*d.queue, left, right, left);
      d.kernels.add(*d.queue, left, right, right);  // a + 2 b
      return std::vector<HostArray>{to_host(d, out), to_host(d, left), to_host(d, right)};
    });
  }
  const Device device = make_ref_device();
  const Tensor sum = poisoned(device, Shape{2});
  device.kernels.add(*device.queue, to_device(device, HostArray(Shape{2}, {1, 2})),
                     to_device(device, HostArray(Shape{2}, {10, -5})), sum);
  expect_same(to_host(device, sum), HostArray(Shape{2}, {11, -3}), "sum");
}

// Between any two types the result is that of the conversions of dtype.h, by way of f32.
TEST(Cast, EveryPairOfTypes) {
  const std::vector<DType> types{DType::kF64, DType::kF32, DType::kBF16, DType::kF16};
  for (const Device& device : all_devices()) {
    for (const DType from : types) {
      for (const DType to : types) {
        for (const int64_t n : {0, 1, 15, 16, 17, 200}) {
          const Tensor x = to_device(device, random_array(Shape{n}, 1, 3), from);
          const Tensor y = poisoned(device, Shape{n}, to);
          device.kernels.cast(*device.queue, x, y);
          const Tensor expected = to_device(device, to_host(device, x), to);
          expect_same(to_host(device, y), to_host(device, expected),
                      fmt::format("{} of {} to {}", n, dtype_name(from), dtype_name(to)));
        }
      }
    }
  }
}

TEST(Cast, KeepsNanAndInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  const HostArray x(Shape{4}, {inf, -inf, std::nan(""), 1e30});
  for (const Device& device : all_devices()) {
    for (const DType to : {DType::kBF16, DType::kF16, DType::kF32}) {
      const Tensor y = poisoned(device, Shape{4}, to);
      device.kernels.cast(*device.queue, to_device(device, x, DType::kF32), y);
      const HostArray out = to_host(device, y);
      EXPECT_EQ(out[0], inf);
      EXPECT_EQ(out[1], -inf);
      EXPECT_TRUE(std::isnan(out[2]));
      EXPECT_EQ(std::isinf(out[3]), to == DType::kF16);
    }
  }
}

HostArray sigmoid_forward(const Device& device, const HostArray& x) {
  const Tensor y = poisoned(device, x.shape);
  device.kernels.sigmoid_forward(*device.queue, to_device(device, x), y);
  return to_host(device, y);
}

HostArray sigmoid_backward(const Device& device, const HostArray& dy, const HostArray& x) {
  const Tensor y = to_device(device, sigmoid_forward(device, x));
  const Tensor dx = poisoned(device, x.shape);
  const Tensor in_place = to_device(device, dy);
  device.kernels.sigmoid_backward(*device.queue, in_place, y, dx);
  device.kernels.sigmoid_backward(*device.queue, in_place, y, in_place);
  expect_same(to_host(device, in_place), to_host(device, dx), "in place");
  return to_host(device, dx);
}

TEST(Sigmoid, Gradients) {
  const Device device = make_ref_device();
  check_gradients(
      {"x"}, {random_array(Shape{13}, 1)},
      [&](const auto& in) { return std::vector<HostArray>{sigmoid_forward(device, in[0])}; },
      [&](const auto& in, const auto& dy) {
        return std::vector<HostArray>{sigmoid_backward(device, dy[0], in[0])};
      });
}

TEST(Sigmoid, FastPathAgrees) {
  for (const int64_t n : kSizes) {
    const HostArray x = random_array(Shape{n}, 1, 4);
    const HostArray dy = random_array(Shape{n}, 2);
    expect_parity(fmt::format("{}", n), [&](const Device& d) {
      return std::vector<HostArray>{sigmoid_forward(d, x), sigmoid_backward(d, dy, x)};
    });
  }
}

TEST(AddScaledRows, AgreesAndAdds) {
  const Device device = make_ref_device();
  const Tensor out = to_device(device, HostArray(Shape{2, 2}, {100, 200, 300, 400}));
  device.kernels.add_scaled_rows(*device.queue, to_device(device, HostArray(Shape{2, 2}, {1, 2, 3, 4})),
                                 to_device(device, HostArray(Shape{2}, {10, -1})), out);
  expect_same(to_host(device, out), HostArray(Shape{2, 2}, {110, 220, 297, 396}), "out");
  for (const int64_t rows : {0, 1, 7, 65}) {
    for (const int64_t cols : {1, 2, 15, 16, 17, 300}) {
      const HostArray x = random_array(Shape{rows, cols}, 1);
      const HostArray scale = random_array(Shape{rows}, 2);
      const HostArray before = random_array(Shape{rows, cols}, 3);
      expect_parity(fmt::format("{} x {}", rows, cols), [&](const Device& d) {
        const Tensor sum = to_device(d, before);
        d.kernels.add_scaled_rows(*d.queue, to_device(d, x), to_device(d, scale), sum);
        return std::vector<HostArray>{to_host(d, sum)};
      });
    }
  }
}

TEST(GatherRows, PicksRowsAndScatterIsItsTranspose) {
  for (const int64_t cols : {1, 2, 15, 16, 17, 300}) {
    const HostArray x = random_array(Shape{5, cols}, 1);
    const HostArray index = integer_array(Shape{4}, {4, 0, 2, 0});
    const HostArray distinct = integer_array(Shape{3}, {6, 1, 3});
    const HostArray before = random_array(Shape{7, cols}, 2);
    const HostArray rows = random_array(Shape{3, cols}, 3);
    const KernelRun run = [&](const Device& d) {
      const Tensor y = poisoned(d, Shape{4, cols});
      d.kernels.gather_rows(*d.queue, to_device(d, x), to_device(d, index, DType::kI32), y);
      const Tensor sum = to_device(d, before);
      d.kernels.scatter_add_rows(*d.queue, to_device(d, rows), to_device(d, distinct, DType::kI32), sum);
      return std::vector<HostArray>{to_host(d, y), to_host(d, sum)};
    };
    expect_parity(fmt::format("{} columns", cols), run);
    const auto out = run(make_ref_device());
    HostArray expected = before;
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t i = 0; i < 4; ++i)
        EXPECT_EQ(out[0][i * cols + c], x[static_cast<int64_t>(index[i]) * cols + c]);
      for (int64_t i = 0; i < 3; ++i)
        expected[static_cast<int64_t>(distinct[i]) * cols + c] += rows[i * cols + c];
    }
    expect_same(out[1], expected, "scattered");
  }
}

TEST(CopyColumns, MovesTheColumnsAsked) {
  const HostArray x = random_array(Shape{70, 9}, 1);
  const HostArray before = random_array(Shape{70, 7}, 2);
  for (const CopyColumnsParams& p : {CopyColumnsParams{2, 1, 5}, {0, 0, 7}, {8, 6, 1}, {4, 3, 0}}) {
    const KernelRun run = [&](const Device& d) {
      const Tensor y = to_device(d, before);
      d.kernels.copy_columns(*d.queue, p, to_device(d, x), y);
      return std::vector<HostArray>{to_host(d, y)};
    };
    expect_parity(fmt::format("{} columns", p.columns), run);
    HostArray expected = before;
    for (int64_t r = 0; r < 70; ++r) {
      for (int64_t c = 0; c < p.columns; ++c) expected[r * 7 + p.to + c] = x[r * 9 + p.from + c];
    }
    expect_same(run(make_ref_device())[0], expected, "copied");
  }
  const Device ref = make_ref_device();
  const Tensor y = to_device(ref, before);
  EXPECT_THROW(ref.kernels.copy_columns(*ref.queue, {3, 1, 7}, to_device(ref, x), y), Error);
}

TEST(GatherRows, IndicesOutOfRangeAreCaught) {
  for (const Device& device : all_devices()) {
    if (device.options.threads > 1) continue;  // an exception does not leave a parallel region
    const Tensor x = to_device(device, random_array(Shape{2, 3}, 1));
    const Tensor index = to_device(device, integer_array(Shape{1}, {2}), DType::kI32);
    const Tensor y = poisoned(device, Shape{1, 3});
    EXPECT_THROW(device.kernels.gather_rows(*device.queue, x, index, y), Error);
    EXPECT_THROW(device.kernels.scatter_add_rows(*device.queue, y, index, x), Error);
  }
}

TEST(SumOfSquares, AgreesForAnyThreadCount) {
  for (const int64_t n : {0, 1, 2, 7, 17, 200, 40000, 16384 * 3}) {
    const HostArray x = random_array(Shape{n}, 1);
    expect_parity(
        fmt::format("{}", n),
        [&](const Device& d) {
          return std::vector<HostArray>{
              HostArray(Shape{1}, {d.kernels.sum_of_squares(*d.queue, to_device(d, x))})};
        },
        1e-7);
  }
}

TEST(SumOfSquares, ManyElementsLoseNothing) {
  constexpr int64_t kCount = 16384 * 300 + 5;  // more blocks than are summed in one go
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    const Tensor x = poisoned(device, Shape{kCount});
    device.kernels.fill(*device.queue, 3, x);
    EXPECT_EQ(device.kernels.sum_of_squares(*device.queue, x), 9.0 * kCount);
  }
}

TEST(SumOfSquares, LargeValuesDoNotOverflow) {
  for (const Device& device : all_devices()) {
    const Tensor x = to_device(device, HostArray(Shape{2}, {1e30, 1e30}));
    EXPECT_NEAR(device.kernels.sum_of_squares(*device.queue, x), 2e60, 1e54);
  }
}

}  // namespace
}  // namespace lathe::test
