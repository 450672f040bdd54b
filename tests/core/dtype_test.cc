#include "lathe/core/dtype.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

namespace lathe {
namespace {

float from_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(DType, SizesAndNames) {
  const std::array<std::tuple<DType, int64_t, const char*>, 8> all{{{DType::kF64, 8, "f64"},
                                                                    {DType::kF32, 4, "f32"},
                                                                    {DType::kBF16, 2, "bf16"},
                                                                    {DType::kF16, 2, "f16"},
                                                                    {DType::kI64, 8, "i64"},
                                                                    {DType::kI32, 4, "i32"},
                                                                    {DType::kI16, 2, "i16"},
                                                                    {DType::kU8, 1, "u8"}}};
  for (const auto& [dtype, size, name] : all) {
    EXPECT_EQ(dtype_size(dtype), size);
    EXPECT_STREQ(dtype_name(dtype), name);
  }
}

TEST(BFloat16, EveryValueComesBack) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(value))));
    } else {
      ASSERT_EQ(to_bfloat16(value).bits, bits);
    }
  }
}

TEST(Float16, EveryValueComesBack) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Float16 x{static_cast<uint16_t>(bits)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_float16(value))));
    } else {
      ASSERT_EQ(to_float16(value).bits, bits);
    }
  }
}

// The value of a half from its definition.
double defined_value(uint32_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  const int exponent = static_cast<int>((bits >> 10) & 31U);
  const double mantissa = bits & 1023U;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Float16, ValuesAreThoseOfTheDefinition) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    if ((bits & 0x7C00U) == 0x7C00U) continue;
    ASSERT_EQ(static_cast<double>(to_float(Float16{static_cast<uint16_t>(bits)})), defined_value(bits))
        << bits;
  }
  EXPECT_EQ(to_float(Float16{0x7C00}), std::numeric_limits<float>::infinity());
  EXPECT_EQ(to_float(Float16{0xFC00}), -std::numeric_limits<float>::infinity());
}

// Between two neighbours: the lower half rounds down, the upper half up, the middle to the even one.
template <typename Half, typename ToHalf>
void check_rounding(uint32_t largest_finite, ToHalf to_half) {
  for (uint32_t bits = 0; bits < largest_finite; ++bits) {
    const float low = to_float(Half{static_cast<uint16_t>(bits)});
    const float high = to_float(Half{static_cast<uint16_t>(bits + 1)});
    const auto middle = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
    ASSERT_EQ(to_half(middle).bits, bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(to_half(std::nextafter(middle, low)).bits, bits) << bits;
    ASSERT_EQ(to_half(std::nextafter(middle, high)).bits, bits + 1) << bits;
    ASSERT_EQ(to_half(-std::nextafter(middle, high)).bits, (bits + 1) | 0x8000U) << bits;
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  check_rounding<BFloat16>(0x7F7FU, [](float x) { return to_bfloat16(x); });
}
TEST(Float16, RoundsToNearestEven) {
  check_rounding<Float16>(0x7BFFU, [](float x) { return to_float16(x); });
}

TEST(BFloat16, Overflow) {
  EXPECT_EQ(to_bfloat16(from_bits(0x7F7F7FFFU)).bits, 0x7F7F);
  EXPECT_EQ(to_bfloat16(from_bits(0x7F7F8000U)).bits, 0x7F80);  // the middle between the largest and infinity
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::infinity()).bits, 0xFF80);
}

TEST(Float16, OverflowAndUnderflow) {
  EXPECT_EQ(to_float16(65504).bits, 0x7BFF);
  EXPECT_EQ(to_float16(65519.996F).bits, 0x7BFF);
  EXPECT_EQ(to_float16(65520).bits, 0x7C00);
  EXPECT_EQ(to_float16(1e30F).bits, 0x7C00);
  EXPECT_EQ(to_float16(-std::numeric_limits<float>::infinity()).bits, 0xFC00);
  EXPECT_EQ(to_float16(0x1p-25F).bits, 0);  // the middle between zero and the smallest
  EXPECT_EQ(to_float16(0x1.000002p-25F).bits, 1);
  EXPECT_EQ(to_float16(-0x1p-30F).bits, 0x8000);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::denorm_min()).bits, 0);
}

// Payloads that rounding would carry into infinity stay NaN.
TEST(HalfTypes, NanStaysNan) {
  for (const uint32_t bits : {0x7F800001U, 0x7FFFFFFFU, 0xFFFFFFFFU, 0x7FC00000U, 0xFF800001U, 0x7F80FFFFU}) {
    EXPECT_TRUE(std::isnan(to_float(to_bfloat16(from_bits(bits))))) << bits;
    EXPECT_TRUE(std::isnan(to_float(to_float16(from_bits(bits))))) << bits;
    EXPECT_EQ(std::signbit(to_float(to_bfloat16(from_bits(bits)))), bits >> 31 != 0) << bits;
  }
}

}  // namespace
}  // namespace lathe
