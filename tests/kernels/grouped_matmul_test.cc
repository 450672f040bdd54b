#include "lathe/kernels/grouped_matmul.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "lathe/kernels/onednn_gemm.h"

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

constexpr double kUntouched = 7;

struct Case {
  std::vector<int32_t> offsets;
  int64_t n = 0;
  int64_t k = 0;
  DType weights = DType::kF32;
  DType compute = DType::kF32;
  int64_t spare_rows = 5;  // beyond the last offset

  [[nodiscard]] int64_t experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
  [[nodiscard]] int64_t used() const { return offsets.back(); }
  [[nodiscard]] int64_t rows() const { return used() + spare_rows; }
};

// Random rows; NaN at and beyond the last offset.
HostArray rows_of(const Case& t, int64_t width, uint64_t seed) {
  HostArray out = random_array({t.rows(), width}, seed);
  for (int64_t i = t.used() * width; i < out.size(); ++i) out[i] = std::numeric_limits<double>::quiet_NaN();
  return out;
}

struct Results {
  HostArray forward;
  HostArray input_gradient;
  HostArray weight_gradient;
};

HostArray product(const Device& device, const Case& t, bool trans_w) {
  const bool wide = device.float_type() == DType::kF64 && t.weights == DType::kF32;
  const Tensor offsets = to_device(device, integer_array({t.experts() + 1}, t.offsets), DType::kI32);
  const Tensor w =
      to_device(device, random_array({t.experts(), t.n, t.k}, 1), wide ? DType::kF64 : t.weights);
  const Tensor a = to_device(device, rows_of(t, trans_w ? t.k : t.n, 2));
  HostArray initial({t.rows(), trans_w ? t.n : t.k});
  const int64_t width = initial.shape[1];
  for (int64_t i = 0; i < initial.size(); ++i) {
    initial[i] = i < t.used() * width ? std::numeric_limits<double>::quiet_NaN() : kUntouched;
  }
  const Tensor c = to_device(device, initial);
  device.kernels.grouped_matmul(*device.queue, {.trans_w = trans_w, .compute = t.compute}, a, w, offsets, c);
  return to_host(device, c);
}

Results run(const Device& device, const Case& t) {
  const Tensor offsets = to_device(device, integer_array({t.experts() + 1}, t.offsets), DType::kI32);
  const Tensor dy = to_device(device, rows_of(t, t.n, 3));
  const Tensor x = to_device(device, rows_of(t, t.k, 4));
  const Tensor dw = to_device(device, random_array({t.experts(), t.n, t.k}, 5));
  device.kernels.grouped_matmul_weight_gradient(*device.queue, {.compute = t.compute}, dy, x, offsets, dw);
  return {product(device, t, true), product(device, t, false), to_host(device, dw)};
}

void check(const Case& t, const std::string& what) {
  const Results expected = run(make_ref_device(), t);
  for (const Isa isa : isas_at_hand()) {
    const std::string label = what + " " + isa_name(isa);
    const Results two = run(make_cpu_device(isa, 2), t);
    expect_near(two.forward, expected.forward, 1e-6, "forward " + label);
    expect_near(two.input_gradient, expected.input_gradient, 1e-6, "input gradient " + label);
    expect_near(two.weight_gradient, expected.weight_gradient, 1e-6, "weight gradient " + label);
    const Results one = run(make_cpu_device(isa, 1), t);
    expect_same(one.forward, two.forward, "one and two threads " + label);
    expect_same(one.input_gradient, two.input_gradient, "one and two threads " + label);
    expect_same(one.weight_gradient, two.weight_gradient, "one and two threads " + label);
    for (int64_t i = t.used() * t.n; i < two.forward.size(); ++i)
      ASSERT_EQ(two.forward[i], kUntouched) << label;
  }
}

TEST(GroupedMatmul, RefEqualsOneProductPerExpert) {
  const Device device = make_ref_device();
  const Case t{.offsets = {0, 2, 2, 5}, .n = 4, .k = 3};
  const HostArray grouped = product(device, t, true);
  const HostArray a = rows_of(t, t.k, 2);
  const HostArray w = random_array({3, t.n, t.k}, 1);
  for (int64_t r = 0; r < 5; ++r) {
    const int64_t e = r < 2 ? 0 : 2;
    for (int64_t j = 0; j < t.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < t.k; ++l) sum += a[r * t.k + l] * w[(e * t.n + j) * t.k + l];
      EXPECT_NEAR(grouped[r * t.n + j], sum, 1e-14) << r << ", " << j;
    }
  }
  for (int64_t i = 5 * t.n; i < grouped.size(); ++i) EXPECT_EQ(grouped[i], kUntouched);
}

TEST(GroupedMatmul, OddSizesAndEmptyExperts) {
  for (const DType weights : {DType::kF32, DType::kBF16}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const std::string what = fmt::format("{} computed in {}", dtype_name(weights), dtype_name(compute));
      check({{0, 1}, 1, 1, weights, compute}, what);
      check({{0, 0, 3, 3, 70, 71, 71}, 33, 65, weights, compute}, what);
      check({{0, 140, 140, 143}, 130, 67, weights, compute}, what);
      check({{0, 17, 17, 600}, 70, 1100, weights, compute}, what);
    }
  }
}

TEST(GroupedMatmul, ManyTiles) {
  check({{0, 600, 601, 1300}, 1100, 40}, "many tiles");
}

TEST(GroupedMatmul, NoRowsAtAll) {
  const Case t{.offsets = {0, 0, 0}, .n = 6, .k = 5};
  check(t, "no rows");
  for (const Isa isa : isas_at_hand()) {
    const Results out = run(make_cpu_device(isa), t);
    const Device device = make_cpu_device(isa);
    const Tensor before = to_device(device, random_array({2, 6, 5}, 5));
    expect_same(out.weight_gradient, to_host(device, before), "weight gradient");
  }
  check({.offsets = {0, 0, 0}, .n = 6, .k = 5, .spare_rows = 0}, "no memory");
}

TEST(GroupedMatmul, ExpertsWithoutRowsKeepTheirGradient) {
  const Case t{.offsets = {0, 3, 3, 4}, .n = 6, .k = 5};
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    const HostArray out = run(device, t).weight_gradient;
    const HostArray before = to_host(device, to_device(device, random_array({3, 6, 5}, 5)));
    for (int64_t i = 0; i < 30; ++i) {
      EXPECT_EQ(out[30 + i], before[30 + i]);
      EXPECT_NE(out[i], before[i]);
    }
  }
}

// In a process of its own, because oneDNN keeps the level of the first device of a process.
TEST(GroupedMatmulDeathTest, NativeBf16) {
  if (!has_native_bf16(chosen_isa())) GTEST_SKIP() << "no native bf16 here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    cap_onednn_isa(chosen_isa());
    if (!onednn_has_bf16()) std::_Exit(3);
    for (const DType weights : {DType::kF32, DType::kBF16}) {
      check({{0, 0, 3, 3, 70, 71, 71}, 33, 65, weights, DType::kBF16}, "native");
      check({{0, 17, 17, 600}, 70, 1100, weights, DType::kBF16}, "native");
    }
    std::_Exit(testing::Test::HasFailure() || !onednn_has_bf16() ? 1 : 0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lathe::test
