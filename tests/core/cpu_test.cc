#include "lathe/core/cpu.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "lathe/core/error.h"

namespace lathe {
namespace {

class CpuIsa : public testing::Test {
 protected:
  void SetUp() override {
    const char* value = std::getenv("LATHE_ISA");
    if (value != nullptr) before_ = value;
  }
  void TearDown() override {
    if (before_.empty()) {
      unsetenv("LATHE_ISA");
    } else {
      setenv("LATHE_ISA", before_.c_str(), 1);
    }
  }

 private:
  std::string before_;
};

TEST_F(CpuIsa, NamesComeBack) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  }
  EXPECT_THROW(static_cast<void>(isa_from_name("sse")), Error);
  EXPECT_FALSE(has_native_bf16(Isa::kAvx512));
  EXPECT_TRUE(has_native_bf16(Isa::kAvx512Bf16));
}

TEST_F(CpuIsa, EnvironmentLowersTheLevel) {
  const CpuInfo info = cpu_info();
  if (!info.avx2) GTEST_SKIP() << "no AVX2 here";
  unsetenv("LATHE_ISA");
  EXPECT_EQ(chosen_isa(), info.best);
  setenv("LATHE_ISA", "avx2", 1);
  EXPECT_EQ(chosen_isa(), Isa::kAvx2);
  setenv("LATHE_ISA", "nonsense", 1);
  EXPECT_THROW(static_cast<void>(chosen_isa()), Error);
  if (info.best != Isa::kAmx) {
    setenv("LATHE_ISA", "amx", 1);
    EXPECT_THROW(static_cast<void>(chosen_isa()), Error);
  }
}

}  // namespace
}  // namespace lathe
