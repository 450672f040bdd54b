#include "lathe/kernels/matmul.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "lathe/kernels/onednn_gemm.h"

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

struct Types {
  DType a = DType::kF32;
  DType b = DType::kF32;
  DType compute = DType::kF32;
};

struct Case {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  MatmulParams params;
  Types types;
};

std::string text(const Case& t) {
  return fmt::format("{} x {} x {} trans {}{} accumulate {} a {} b {} compute {}", t.m, t.n, t.k,
                     t.params.trans_a, t.params.trans_b, t.params.accumulate, dtype_name(t.types.a),
                     dtype_name(t.types.b), dtype_name(t.types.compute));
}

HostArray run(const Device& device, const Case& t) {
  const bool wide = device.float_type() == DType::kF64;
  const auto stored = [&](DType type) { return wide && type == DType::kF32 ? DType::kF64 : type; };
  const Shape shape_a = t.params.trans_a ? Shape{t.k, t.m} : Shape{t.m, t.k};
  const Shape shape_b = t.params.trans_b ? Shape{t.n, t.k} : Shape{t.k, t.n};
  const Tensor a = to_device(device, random_array(shape_a, 1), stored(t.types.a));
  const Tensor b = to_device(device, random_array(shape_b, 2), stored(t.types.b));
  const Shape shape_c{t.m, t.n};
  const Tensor c =
      t.params.accumulate ? to_device(device, random_array(shape_c, 3)) : poisoned(device, shape_c);
  MatmulParams params = t.params;
  params.compute = t.types.compute;
  device.kernels.matmul(*device.queue, params, a, b, c);
  return to_host(device, c);
}

void check(const Case& t, double tolerance = 1e-6) {
  const HostArray expected = run(make_ref_device(), t);
  for (const Isa isa : isas_at_hand()) {
    const HostArray two = run(make_cpu_device(isa, 2), t);
    expect_near(two, expected, tolerance, text(t) + " " + isa_name(isa));
    expect_same(run(make_cpu_device(isa, 1), t), two, "one and two threads: " + text(t));
  }
}

std::vector<MatmulParams> all_params() {
  std::vector<MatmulParams> out;
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const bool accumulate : {false, true}) out.push_back({a, b, accumulate, DType::kF32});
    }
  }
  return out;
}

std::vector<Types> all_types() {
  std::vector<Types> out;
  for (const DType a : {DType::kF32, DType::kBF16}) {
    for (const DType b : {DType::kF32, DType::kBF16}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) out.push_back({a, b, compute});
    }
  }
  return out;
}

TEST(Matmul, RefMultipliesByHand) {
  const Device device = make_ref_device();
  const Tensor a = to_device(device, {Shape{2, 3}, {1, 2, 3, 4, 5, 6}});
  const Tensor b = to_device(device, {Shape{2, 3}, {1, 0, -1, 2, 1, 0}});
  const Tensor c = poisoned(device, {2, 2});
  device.kernels.matmul(*device.queue, {.trans_b = true}, a, b, c);
  expect_same(to_host(device, c), {Shape{2, 2}, {-2, 4, -2, 13}}, "a b^T");
  const Tensor d = to_device(device, {Shape{3, 3}, std::vector<double>(9, 100)});
  device.kernels.matmul(*device.queue, {.trans_a = true, .accumulate = true}, a, b, d);
  expect_same(to_host(device, d), {Shape{3, 3}, {109, 104, 99, 112, 105, 98, 115, 106, 97}}, "a^T b + d");
}

TEST(Matmul, OddSizesAllTransposes) {
  for (const MatmulParams& params : all_params()) {
    for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 1}, {1, 130, 7}, {3, 1, 65}, {67, 5, 33}, {131, 257, 70}, {5, 300, 1100}}) {
      check({m, n, k, params, {}});
    }
  }
}

TEST(Matmul, AllTypes) {
  for (const Types& types : all_types()) {
    for (const MatmulParams& params : all_params()) check({131, 203, 67, params, types});
    check({33, 70, 2100, {.trans_b = true}, types});  // deeper than what is converted at once
    check({70, 33, 2100, {.trans_a = true, .accumulate = true}, types});
  }
}

TEST(Matmul, ManyTiles) {
  check({1100, 530, 270, {.trans_b = true}, {}});
  check({530, 2100, 65, {}, {DType::kF32, DType::kBF16, DType::kF32}});
  check({140, 2100, 1030, {.trans_a = true, .accumulate = true}, {DType::kF32, DType::kF32, DType::kBF16}});
}

TEST(Matmul, TallSkinnyGradients) {
  constexpr double kLongSum = 5e-6;
  check({1, 300, 5000, {.trans_a = true, .accumulate = true}, {}}, kLongSum);
  check({129, 3, 5000, {.trans_a = true}, {}}, kLongSum);
  check({16, 140, 5000, {.trans_a = true}, {DType::kF32, DType::kF32, DType::kBF16}}, kLongSum);
}

TEST(Matmul, EmptyExtents) {
  for (const Types& types : all_types()) {
    for (const MatmulParams& params : all_params()) {
      check({5, 7, 0, params, types});
      check({0, 7, 3, params, types});
      check({5, 0, 3, params, types});
    }
  }
}

// A row of NaN stays in its row.
TEST(Matmul, NanStaysInItsRow) {
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    HostArray host = random_array({70, 90}, 1);
    for (int64_t j = 0; j < 90; ++j) host[33 * 90 + j] = std::numeric_limits<double>::quiet_NaN();
    const Tensor a = to_device(device, host);
    const Tensor b = to_device(device, random_array({40, 90}, 2));
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const Tensor c = poisoned(device, {70, 40});
      device.kernels.matmul(*device.queue, {.trans_b = true, .compute = compute}, a, b, c);
      const HostArray out = to_host(device, c);
      for (int64_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 40 == 33) << i;
    }
  }
}

// bf16 products must round their inputs: f32 products of the same inputs differ visibly.
TEST(Matmul, Bf16ComputeRounds) {
  const Case rounded{64, 64, 64, {}, {DType::kF32, DType::kF32, DType::kBF16}};
  const Case exact{64, 64, 64, {}, {}};
  const HostArray a = run(make_ref_device(), rounded);
  const HostArray b = run(make_ref_device(), exact);
  double gap = 0;
  for (int64_t i = 0; i < a.size(); ++i) gap = std::max(gap, std::abs(a[i] - b[i]));
  EXPECT_GT(gap, 1e-3);
}

// In a process of its own, because oneDNN keeps the level of the first device of a process.
TEST(MatmulDeathTest, NativeBf16) {
  if (!has_native_bf16(chosen_isa())) GTEST_SKIP() << "no native bf16 here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    cap_onednn_isa(chosen_isa());
    if (!onednn_has_bf16()) std::_Exit(3);
    for (const Types& types : all_types()) {
      for (const MatmulParams& params : all_params()) check({131, 203, 67, params, types});
      check({33, 70, 2100, {.trans_b = true}, types});
      check({600, 1100, 65, {}, types});
    }
    std::_Exit(testing::Test::HasFailure() || !onednn_has_bf16() ? 1 : 0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lathe::test
