// What libFuzzer calls; compiled once per target with LATHE_FUZZ_TARGET set to its function.
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const void* bytes = data;
  lathe::fuzz::LATHE_FUZZ_TARGET(std::string_view(static_cast<const char*>(bytes), size));
  return 0;
}
