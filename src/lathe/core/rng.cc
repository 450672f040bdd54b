#include "lathe/core/rng.h"

#include <cmath>
#include <numbers>

namespace lathe {

std::array<uint32_t, 4> CounterRng::block(uint64_t index) const {
  constexpr uint32_t kM0 = 0xD2511F53U;
  constexpr uint32_t kM1 = 0xCD9E8D57U;
  std::array<uint32_t, 4> c{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                            static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)};
  auto k0 = static_cast<uint32_t>(seed_);
  auto k1 = static_cast<uint32_t>(seed_ >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kM0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kM1) * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

namespace {
double unit(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;  // 53 bits
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}
}  // namespace

double CounterRng::uniform(uint64_t index) const {
  const auto b = block(index);
  return unit(b[0], b[1]);
}

double CounterRng::normal(uint64_t index) const {
  const auto b = block(index);
  return std::sqrt(-2.0 * std::log(unit(b[0], b[1]))) * std::cos(2.0 * std::numbers::pi * unit(b[2], b[3]));
}

uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

}  // namespace lathe
