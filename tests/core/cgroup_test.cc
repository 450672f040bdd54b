#include "lathe/core/cgroup.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace lathe {
namespace {

class Cgroup : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(temp_ / name).parent_path());
    static_cast<void>(temp_.write(name, text));
  }
  [[nodiscard]] double processors(const std::string& membership) const {
    return cgroup_cpu_limit(temp_.path(), temp_.write("self", membership)).value_or(-1);
  }
  [[nodiscard]] int64_t memory(const std::string& membership) const {
    return cgroup_memory_left(temp_.path(), temp_.write("self", membership)).value_or(-1);
  }

 private:
  test::TempFolder temp_;
};

TEST_F(Cgroup, TheTightestQuotaUpToTheRoot) {
  EXPECT_EQ(processors("0::/a/b\n"), -1);
  put("a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(processors("0::/a/b\n"), -1);
  put("a/cpu.max", "150000 100000\n");
  EXPECT_EQ(processors("0::/a/b\n"), 1.5);
  EXPECT_EQ(processors("0::/\n"), -1);
  put("cpu.max", "50000 100000\n");
  EXPECT_EQ(processors("0::/a/b\n"), 0.5);
  EXPECT_EQ(processors("0::/../elsewhere\n"), 0.5);
}

TEST_F(Cgroup, VersionOneHasFoldersOfItsOwn) {
  put("cpu/x/cpu.cfs_quota_us", "300000");
  put("cpu/x/cpu.cfs_period_us", "100000");
  EXPECT_EQ(processors("3:cpuset:/x\n2:cpu,cpuacct:/x\n"), 3);
  EXPECT_EQ(processors("2:cpuset:/x\nnonsense\n"), -1);
  put("cpu/x/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(processors("2:cpu,cpuacct:/x\n"), -1);

  put("memory/x/memory.limit_in_bytes", "1000");
  put("memory/x/memory.usage_in_bytes", "700");
  put("memory/x/memory.stat", "active_file 1\ntotal_active_file 50\n");
  EXPECT_EQ(memory("4:memory:/x\n"), 350);
}

TEST_F(Cgroup, MemoryThatCachesFilesIsFree) {
  put("a/memory.max", "max\n");
  put("a/memory.current", "900\n");
  EXPECT_EQ(memory("0::/a\n"), -1);
  put("a/memory.max", "1000\n");
  EXPECT_EQ(memory("0::/a\n"), 100);
  put("a/memory.stat", "anon 300\ninactive_file 400\nactive_file 200\n");
  EXPECT_EQ(memory("0::/a\n"), 700);
  put("a/memory.current", "1700\n");
  EXPECT_EQ(memory("0::/a\n"), 0);
}

TEST_F(Cgroup, NothingToReadIsNoLimit) {
  EXPECT_FALSE(cgroup_cpu_limit("/no/such", "/no/such"));
  EXPECT_FALSE(cgroup_memory_left("/no/such", "/no/such"));
}

}  // namespace
}  // namespace lathe
