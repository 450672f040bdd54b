// Element types of tensors, and conversions of the two 16-bit floats (round to nearest even; NaN stays NaN).
#pragma once

#include <bit>
#include <cstdint>

namespace lathe {

enum class DType : uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kI16, kU8 };

[[nodiscard]] int64_t dtype_size(DType dtype);
[[nodiscard]] const char* dtype_name(DType dtype);  // "f32", "bf16", ...

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

[[nodiscard, gnu::always_inline]] inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
[[nodiscard, gnu::always_inline]] inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}
[[nodiscard]] float to_float(Float16 x);
[[nodiscard]] Float16 to_float16(float x);

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType kValue = DType::kF64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kF32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType kValue = DType::kBF16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType kValue = DType::kF16;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType kValue = DType::kI64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType kValue = DType::kI32;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType kValue = DType::kI16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType kValue = DType::kU8;
};

}  // namespace lathe
