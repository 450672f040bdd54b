// What this processor can do, and what the fast path uses of it.
#pragma once

#include <cstdint>
#include <string>

namespace lathe {

enum class Isa : int { kAvx2 = 0, kAvx512 = 1, kAvx512Bf16 = 2, kAmx = 3 };
[[nodiscard]] const char* isa_name(Isa isa);               // "avx2", "avx512", "avx512_bf16", "amx"
[[nodiscard]] Isa isa_from_name(const std::string& name);  // throws a config error that lists the names

struct CpuInfo {
  std::string model;
  bool avx2 = false;  // with FMA and F16C; below that the cpu device does not run
  Isa best = Isa::kAvx2;
};
[[nodiscard]] CpuInfo cpu_info();
// The level to use: the best of this processor, lowered by the environment variable LATHE_ISA (never raised: asking for
// more than the processor has is a config error).
[[nodiscard]] Isa chosen_isa();
// LATHE_ISA says something.
[[nodiscard]] bool isa_is_set_by_hand();
// Bytes of memory that this machine, or this process's control group if that allows less, can still give.
[[nodiscard]] int64_t available_memory_bytes();
// The most memory this process has had resident so far.
[[nodiscard]] int64_t peak_resident_bytes();
// True where bf16 products run natively at this level.
[[nodiscard]] bool has_native_bf16(Isa isa);

}  // namespace lathe
