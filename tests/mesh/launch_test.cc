#include "lathe/mesh/launch.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "lathe/core/error.h"
#include "lathe/core/parallel.h"

namespace lathe {
namespace {

class LaunchTest : public testing::Test {
 protected:
  void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  void TearDown() override {
    for (const char* name :
         {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE"})
      ::unsetenv(name);
  }
};

TEST_F(LaunchTest, OneRankWithoutMpirun) {
  const Launch launch = launch_from_environment();
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.ranks, 1);
  EXPECT_EQ(launch.cores(), available_cores());
}

TEST_F(LaunchTest, RanksOfAHostShareItsCores) {
  set("OMPI_COMM_WORLD_SIZE", "8");
  set("OMPI_COMM_WORLD_RANK", "5");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  const Launch launch = launch_from_environment();
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.ranks, 8);
  EXPECT_EQ(launch.host_ranks, 2);
  EXPECT_EQ(launch.cores(), std::max(1, available_cores() / 2));
  EXPECT_EQ((Launch{.rank = 0, .ranks = 5000, .host_ranks = 5000}.cores()), 1);
}

TEST_F(LaunchTest, NonsenseIsNoLaunch) {
  set("OMPI_COMM_WORLD_SIZE", "two");
  set("OMPI_COMM_WORLD_RANK", "7");
  EXPECT_EQ(launch_from_environment().ranks, 1);
  EXPECT_EQ(launch_from_environment().rank, 0);
}

TEST_F(LaunchTest, OtherLaunchersAreRefused) {
  set("PMI_SIZE", "4");
  EXPECT_THROW(static_cast<void>(launch_from_environment()), Error);
}

}  // namespace
}  // namespace lathe
