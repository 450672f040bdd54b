#include "lathe/core/cgroup.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace lathe {
namespace {

double limit(const test::TempFolder& temp, const std::string& membership) {
  return cgroup_cpu_limit(temp.path(), temp.write("self", membership));
}

TEST(CgroupCpuLimit, TheTightestQuotaUpToTheRoot) {
  const test::TempFolder temp;
  std::filesystem::create_directories(temp / "a/b");
  EXPECT_EQ(limit(temp, "0::/a/b\n"), 0);
  static_cast<void>(temp.write("a/b/cpu.max", "max 100000\n"));
  EXPECT_EQ(limit(temp, "0::/a/b\n"), 0);
  static_cast<void>(temp.write("a/cpu.max", "150000 100000\n"));
  EXPECT_EQ(limit(temp, "0::/a/b\n"), 1.5);
  EXPECT_EQ(limit(temp, "0::/\n"), 0);
  static_cast<void>(temp.write("cpu.max", "50000 100000\n"));
  EXPECT_EQ(limit(temp, "0::/a/b\n"), 0.5);
  EXPECT_EQ(limit(temp, "0::/../elsewhere\n"), 0.5);
}

TEST(CgroupCpuLimit, VersionOneHasAControllerOfItsOwn) {
  const test::TempFolder temp;
  std::filesystem::create_directories(temp / "cpu/x");
  static_cast<void>(temp.write("cpu/x/cpu.cfs_quota_us", "300000"));
  static_cast<void>(temp.write("cpu/x/cpu.cfs_period_us", "100000"));
  EXPECT_EQ(limit(temp, "3:cpuset:/x\n2:cpu,cpuacct:/x\n"), 3);
  EXPECT_EQ(limit(temp, "2:cpuset:/x\nnonsense\n"), 0);
  static_cast<void>(temp.write("cpu/x/cpu.cfs_quota_us", "-1"));
  EXPECT_EQ(limit(temp, "2:cpu,cpuacct:/x\n"), 0);
}

TEST(CgroupCpuLimit, NothingToReadIsNoLimit) {
  EXPECT_EQ(cgroup_cpu_limit("/no/such", "/no/such"), 0);
}

}  // namespace
}  // namespace lathe
