// Counter-based random numbers (Philox 4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
// A value depends on (seed, stream, index) only: the same on any thread, rank or order of calls.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lathe {

class CounterRng {
 public:
  CounterRng(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  [[nodiscard]] std::array<uint32_t, 4> block(uint64_t index) const;
  [[nodiscard]] double uniform(uint64_t index) const;  // in (0, 1)
  [[nodiscard]] double normal(uint64_t index) const;   // mean 0, variance 1 (Box-Muller)

 private:
  uint64_t seed_;
  uint64_t stream_;
};

// A stream number for a name (FNV-1a): tensors are initialised by name, not by order.
[[nodiscard]] uint64_t stream_of(std::string_view name);

}  // namespace lathe
