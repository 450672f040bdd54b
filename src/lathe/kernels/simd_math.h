// Elementary functions of f32 for loops that the compiler vectorises: branch-free, inlined everywhere, one
// copy per instruction set. For *_cpu.cc files only. Relative error about 2e-7 unless said otherwise; NaN
// stays NaN.
#pragma once

#include <cstdint>

#include "lathe/core/dtype.h"

#ifndef LATHE_ISA_NAMESPACE
#error "simd_math.h is for files compiled once per instruction set"
#endif
// Inlined always: a copy of an inline function that the linker shares could hold instructions of the wrong
// level.
#define LATHE_INLINE static inline __attribute__((always_inline))

namespace lathe::LATHE_ISA_NAMESPACE {

LATHE_INLINE uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
LATHE_INLINE float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// a where it is the smaller (larger) one, else b: a NaN in b is kept.
LATHE_INLINE float min_of(float a, float b) {
  return a < b ? a : b;
}
LATHE_INLINE float max_of(float a, float b) {
  return a > b ? a : b;
}
LATHE_INLINE int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}
LATHE_INLINE int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}
LATHE_INLINE int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

LATHE_INLINE float to_f32(float x) {
  return x;
}
LATHE_INLINE float to_f32(BFloat16 x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}
LATHE_INLINE BFloat16 to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40U;
  return {static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet_nan : rounded)};
}

// e^x; 0 below the smallest normal number (x < -87.33), infinity above the largest. x = n ln2 + r with |r| <=
// ln2 / 2 (ln2 in two parts); e^r by a minimax polynomial (3e-9); 2^n in two factors because n reaches 128.
LATHE_INLINE float exp_f32(float x) {
  constexpr float kLowest = -87.336540F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float bounded = max_of(kLowest, min_of(89.0F, x));
  const float shifted = bounded * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * 0.693145752F) - n * 1.42860677e-6F;
  float p = 0.00138144671F;
  p = p * r + 0.00836878041F;
  p = p * r + 0.0416683942F;
  p = p * r + 0.166665201F;
  p = p * r + 0.499999934F;
  p = p * (r * r) + r + 1.0F;
  const auto exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(kRound));
  const int32_t half = exponent >> 1;
  const float scale0 = float_of(static_cast<uint32_t>(half + 127) << 23);
  const float scale1 = float_of(static_cast<uint32_t>(exponent - half + 127) << 23);
  const float y = p * scale0 * scale1;
  return x < kLowest ? 0.0F : y;
}

// Natural logarithm; log(0) = -infinity, of a negative number NaN. x = 2^e m with m in [0.70, 1.41];
// log m = 2 atanh((m - 1) / (m + 1)) as a series.
LATHE_INLINE float log_f32(float x) {
  const bool tiny = x < 1.17549435e-38F;
  const float scaled = tiny ? x * 8388608.0F : x;
  const uint32_t bits = bits_of(scaled);
  const uint32_t offset = bits - 0x3F3504F3U;  // sqrt(1/2)
  const int32_t exponent = static_cast<int32_t>(offset) >> 23;
  const float m = float_of(bits - (static_cast<uint32_t>(exponent) << 23));
  const float e = static_cast<float>(exponent) - (tiny ? 23.0F : 0.0F);
  const float s = (m - 1.0F) / (m + 1.0F);
  const float z = s * s;
  float p = 0.18181819F;
  p = p * z + 0.22222222F;
  p = p * z + 0.28571430F;
  p = p * z + 0.40000001F;
  p = p * z + 0.66666669F;
  const float log_m = p * z * s + 2.0F * s;
  const float y = e * 0.693145752F + (e * 1.42860677e-6F + log_m);
  const float infinity = __builtin_inff();
  const float finite_or_special = x < infinity ? y : x;  // infinity and NaN pass
  const float at_zero = x == 0.0F ? -infinity : finite_or_special;
  return x < 0.0F ? __builtin_nanf("") : at_zero;
}

// log(1 + x) for x >= 0: the rounding of 1 + x is put right to first order.
LATHE_INLINE float log1p_f32(float x) {
  const float u = 1.0F + x;
  const float lost = x - (u - 1.0F);
  const float y = log_f32(u) + lost / u;
  return x < __builtin_inff() ? y : x;
}

struct SinCos {
  float sine;
  float cosine;
};
// Absolute error about 1e-7 for |angle| < 1e8: the angle, in f64, is brought to [-pi/4, pi/4] by quarter
// turns.
LATHE_INLINE SinCos sincos_f32(double angle) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: the nearest integer stands in the low bits
  const double shifted = angle * 0.63661977236758134 + kRound;
  const double quarters = shifted - kRound;
  const double rest = (angle - quarters * 1.5707963267341256) - quarters * 6.0771005065061926e-11;
  const auto quadrant = static_cast<uint32_t>(__builtin_bit_cast(uint64_t, shifted));
  const auto r = static_cast<float>(rest);
  const float z = r * r;
  float s = 2.7557319e-6F;
  s = s * z - 1.9841270e-4F;
  s = s * z + 8.3333333e-3F;
  s = s * z - 0.16666667F;
  s = s * z * r + r;
  float c = -2.7557319e-7F;
  c = c * z + 2.4801587e-5F;
  c = c * z - 1.3888889e-3F;
  c = c * z + 4.1666667e-2F;
  c = c * z - 0.5F;
  c = c * z + 1.0F;
  const bool swap = (quadrant & 1U) != 0;
  const float sine = swap ? c : s;
  const float cosine = swap ? s : c;
  // The sign bits: the sine turns in quadrants 2 and 3, the cosine in 1 and 2.
  const uint32_t sine_sign = (quadrant & 2U) << 30;
  const uint32_t cosine_sign = ((quadrant + 1U) & 2U) << 30;
  return {float_of(bits_of(sine) ^ sine_sign), float_of(bits_of(cosine) ^ cosine_sign)};
}

LATHE_INLINE float sigmoid_f32(float x) {
  return 1.0F / (1.0F + exp_f32(-x));
}
LATHE_INLINE float silu_f32(float x) {
  return x * sigmoid_f32(x);
}
// d silu(x) / dx, given s = sigmoid(x).
LATHE_INLINE float silu_slope_f32(float x, float s) {
  return s * (1.0F + x * (1.0F - s));
}
// log(1 + e^x), linear above 20. Its derivative is the sigmoid.
LATHE_INLINE float softplus_f32(float x) {
  const float magnitude = x < 0.0F ? -x : x;
  const float y = (x > 0.0F ? x : 0.0F) + log1p_f32(exp_f32(-magnitude));
  return x > 20.0F ? x : y;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
