#include "lathe/core/dtype.h"

#include "lathe/core/error.h"

namespace lathe {

int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
      return 2;
    case DType::kU8:
      return 1;
  }
  LATHE_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
    case DType::kI16:
      return "i16";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

float to_float(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000U) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1FU;
  uint32_t mantissa = x.bits & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  int shift = 0;
  while ((mantissa & 0x400U) == 0) {
    mantissa <<= 1;
    ++shift;
  }
  return std::bit_cast<float>(sign | (static_cast<uint32_t>(113 - shift) << 23) |
                              ((mantissa & 0x3FFU) << 13));
}

Float16 to_float16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return {static_cast<uint16_t>(sign | 0x7E00U)};
  if (magnitude >= 0x477FF000U) return {static_cast<uint16_t>(sign | 0x7C00U)};  // rounds to infinity
  if (magnitude < 0x38800000U) {  // subnormal in half precision
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 101) return {sign};
    const uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    const uint32_t shift = 126 - exponent;
    const uint32_t half = mantissa >> shift;
    const uint32_t rest = mantissa & ((1U << shift) - 1);
    const uint32_t middle = 1U << (shift - 1);
    const uint32_t up = rest > middle || (rest == middle && (half & 1U)) ? 1U : 0U;
    return {static_cast<uint16_t>(sign | (half + up))};
  }
  const uint32_t rebased = magnitude - 0x38000000U;
  return {static_cast<uint16_t>(sign | ((rebased + 0xFFFU + ((rebased >> 13) & 1U)) >> 13))};
}

}  // namespace lathe
