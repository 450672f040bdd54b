// The elementary functions of the fast path, here compiled for the plain instruction set.
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#define LATHE_ISA_NAMESPACE simd_math_test
#include "lathe/kernels/simd_math.h"

namespace lathe::simd_math_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The largest relative error over a fine grid of [low, high].
double worst_error(float low, float high, const std::function<float(float)>& f,
                   const std::function<double(double)>& exact) {
  double worst = 0;
  constexpr int kSteps = 200001;
  for (int i = 0; i < kSteps; ++i) {
    const float x = low + (high - low) * (static_cast<float>(i) / (kSteps - 1));
    const double expected = exact(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(f(x)) - expected) / std::abs(expected));
  }
  return worst;
}

double exact_sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

TEST(SimdMath, Exp) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LT(worst_error(-87, 88.7F, exp_f32, exact), 2e-7);
  EXPECT_LT(worst_error(-1, 1, exp_f32, exact), 2e-7);
  EXPECT_EQ(exp_f32(0), 1);
  EXPECT_EQ(exp_f32(-88), 0);
  EXPECT_EQ(exp_f32(-1e30F), 0);
  EXPECT_EQ(exp_f32(-kInf), 0);
  EXPECT_EQ(exp_f32(89), kInf);
  EXPECT_EQ(exp_f32(1e30F), kInf);
  EXPECT_EQ(exp_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp_f32(kNan)));
}

TEST(SimdMath, ExpOverflowsWhereItShould) {
  EXPECT_TRUE(std::isfinite(exp_f32(88.7228F)));
  EXPECT_EQ(exp_f32(88.7229F), kInf);
  EXPECT_GE(exp_f32(-87.3365F), std::numeric_limits<float>::min());
}

TEST(SimdMath, Log) {
  const auto exact = [](double x) { return std::log(x); };
  EXPECT_LT(worst_error(1e-6F, 0.999F, log_f32, exact), 3e-7);
  EXPECT_LT(worst_error(1.001F, 3, log_f32, exact), 3e-7);
  EXPECT_LT(worst_error(3, 1e6F, log_f32, exact), 3e-7);
  EXPECT_LT(worst_error(1e30F, 3e38F, log_f32, exact), 3e-7);
  EXPECT_LT(worst_error(1e-45F, 1e-38F, log_f32, exact), 3e-7);
  EXPECT_EQ(log_f32(1), 0);
  EXPECT_EQ(log_f32(0), -kInf);
  EXPECT_EQ(log_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_f32(-1)));
  EXPECT_TRUE(std::isnan(log_f32(kNan)));
}

TEST(SimdMath, Log1p) {
  const auto exact = [](double x) { return std::log1p(x); };
  EXPECT_LT(worst_error(1e-12F, 1e-6F, log1p_f32, exact), 4e-7);
  EXPECT_LT(worst_error(1e-6F, 1, log1p_f32, exact), 4e-7);
  EXPECT_LT(worst_error(1, 1e6F, log1p_f32, exact), 4e-7);
  EXPECT_EQ(log1p_f32(0), 0);
  EXPECT_EQ(log1p_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(log1p_f32(kNan)));
}

TEST(SimdMath, Sigmoid) {
  EXPECT_LT(worst_error(-87, 87, sigmoid_f32, exact_sigmoid), 4e-7);
  EXPECT_EQ(sigmoid_f32(-1e5F), 0);
  EXPECT_EQ(sigmoid_f32(1e5F), 1);
  EXPECT_TRUE(std::isnan(sigmoid_f32(kNan)));
}

TEST(SimdMath, SinCos) {
  for (int i = -400000; i <= 400000; ++i) {
    const double angle = i < 0 ? i * 1e-5 : i * 2.5;
    const SinCos value = sincos_f32(angle);
    ASSERT_NEAR(static_cast<double>(value.sine), std::sin(angle), 1.5e-7) << angle;
    ASSERT_NEAR(static_cast<double>(value.cosine), std::cos(angle), 1.5e-7) << angle;
  }
  EXPECT_EQ(sincos_f32(0).sine, 0);
  EXPECT_EQ(sincos_f32(0).cosine, 1);
  EXPECT_NEAR(sincos_f32(1e8).sine, std::sin(1e8), 1e-6);
}

TEST(SimdMath, Silu) {
  EXPECT_LT(worst_error(-80, -0.01F, silu_f32, [](double x) { return x * exact_sigmoid(x); }), 4e-7);
  EXPECT_LT(worst_error(0.01F, 80, silu_f32, [](double x) { return x * exact_sigmoid(x); }), 4e-7);
  for (float x = -30; x < 30; x += 0.01F) {
    const double s = exact_sigmoid(x);
    EXPECT_NEAR(silu_slope_f32(x, sigmoid_f32(x)), s * (1 + x * (1 - s)), 1e-6) << x;
  }
}

TEST(SimdMath, Softplus) {
  const auto exact = [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  EXPECT_LT(worst_error(-80, -1, softplus_f32, exact), 6e-7);
  EXPECT_LT(worst_error(-1, 19.99F, softplus_f32, exact), 4e-7);
  EXPECT_EQ(softplus_f32(20.5F), 20.5F);
  EXPECT_EQ(softplus_f32(1e5F), 1e5F);
  EXPECT_EQ(softplus_f32(-1e5F), 0);
  EXPECT_TRUE(std::isnan(softplus_f32(kNan)));
}

TEST(SimdMath, BFloat16) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    EXPECT_EQ(bits_of(to_f32(x)), std::bit_cast<uint32_t>(to_float(x)));
    for (const uint32_t tail : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const float y = float_of(bits << 16 | tail);
      ASSERT_EQ(to_bf16(y).bits, to_bfloat16(y).bits) << bits << " " << tail;
    }
  }
}

TEST(SimdMath, MinAndMaxKeepNan) {
  EXPECT_EQ(min_of(1.0F, 2.0F), 1);
  EXPECT_EQ(max_of(1.0F, 2.0F), 2);
  EXPECT_TRUE(std::isnan(min_of(1.0F, kNan)));
  EXPECT_TRUE(std::isnan(max_of(1.0F, kNan)));
}

}  // namespace
}  // namespace lathe::simd_math_test
