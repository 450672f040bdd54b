#include "lathe/core/cpu.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <cpuid.h>
#include <immintrin.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lathe/core/cgroup.h"
#include "lathe/core/error.h"

namespace lathe {
namespace {

constexpr std::array<const char*, 4> kNames{"avx2", "avx512", "avx512_bf16", "amx"};

// Linux hands out the AMX tile registers on request only (arch_prctl ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
bool request_amx() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx_bf16() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1U << 22;
  constexpr unsigned kTile = 1U << 24;
  return (d & kBf16) != 0 && (d & kTile) != 0 && request_amx();
}

// LATHE_ISA, or "".
std::string wanted_isa() {
  const char* wanted = std::getenv("LATHE_ISA");  // NOLINT(concurrency-mt-unsafe): read at start-up
  return wanted == nullptr ? "" : wanted;
}

}  // namespace

const char* isa_name(Isa isa) {
  return kNames[static_cast<size_t>(isa)];
}

Isa isa_from_name(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Isa>(i);
  }
  config_error("LATHE_ISA", fmt::format("unknown instruction set '{}'", name),
               "use avx2, avx512, avx512_bf16 or amx");
}

CpuInfo cpu_info() {
  CpuInfo info;
  std::array<unsigned, 12> brand{};
  for (unsigned i = 0; i < 3; ++i) {
    __get_cpuid(0x80000002U + i, &brand[i * 4], &brand[i * 4 + 1], &brand[i * 4 + 2], &brand[i * 4 + 3]);
  }
  std::array<char, sizeof(brand) + 1> text{};
  std::memcpy(text.data(), brand.data(), sizeof(brand));
  info.model = text.data();
  __builtin_cpu_init();
  info.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    info.best = Isa::kAvx512;
    if (__builtin_cpu_supports("avx512bf16")) {
      info.best = has_amx_bf16() ? Isa::kAmx : Isa::kAvx512Bf16;
    }
  }
  return info;
}

bool isa_is_set_by_hand() {
  return !wanted_isa().empty();
}

Isa chosen_isa() {
  const CpuInfo info = cpu_info();
  if (!info.avx2) {
    config_error("run.device", "this processor has no AVX2 and FMA, which the cpu device needs",
                 "use --set run.device=ref (slow), or another machine");
  }
  const std::string wanted = wanted_isa();
  if (wanted.empty()) return info.best;
  const Isa isa = isa_from_name(wanted);
  if (isa > info.best) {
    config_error("LATHE_ISA",
                 fmt::format("'{}' is more than this processor has ({})", wanted, isa_name(info.best)),
                 "unset LATHE_ISA or lower it");
  }
  return isa;
}

int64_t available_memory_bytes() {
  int64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::string rest;
  for (int64_t kilobytes = 0; meminfo >> key >> kilobytes && std::getline(meminfo, rest);) {
    if (key == "MemAvailable:") available = kilobytes * 1024;
  }
  const auto left = cgroup_memory_left("/sys/fs/cgroup", "/proc/self/cgroup");
  return left ? std::min(available, *left) : available;
}

int64_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

bool has_native_bf16(Isa isa) {
  return isa >= Isa::kAvx512Bf16;
}

}  // namespace lathe
