#include "lathe/kernels/kernel_table.h"

#include <string>

#include "lathe/kernels/register.h"

namespace lathe {

void check_complete(const KernelTable& table, const char* device) {
  std::string missing;
#define LATHE_CHECK_KERNEL(type, member) \
  if (table.member == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(#member);
  LATHE_KERNELS(LATHE_CHECK_KERNEL)
#undef LATHE_CHECK_KERNEL
  LATHE_CHECK(missing.empty(), "device {} has no {}", device, missing);
}

KernelTable ref_kernel_table() {
  KernelTable table;
#define LATHE_REGISTER(operation) ref::register_##operation(table);
  LATHE_OPERATIONS(LATHE_REGISTER)
#undef LATHE_REGISTER
  check_complete(table, "ref");
  return table;
}

KernelTable cpu_kernel_table(Isa isa) {
  KernelTable table;
#define LATHE_REGISTER_AVX2(operation) avx2::register_##operation(table);
#define LATHE_REGISTER_AVX512(operation) avx512::register_##operation(table);
  if (isa >= Isa::kAvx512) {
    LATHE_OPERATIONS(LATHE_REGISTER_AVX512)
  } else {
    LATHE_OPERATIONS(LATHE_REGISTER_AVX2)
  }
#undef LATHE_REGISTER_AVX2
#undef LATHE_REGISTER_AVX512
  check_complete(table, "cpu");
  return table;
}

}  // namespace lathe
