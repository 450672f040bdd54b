#include <gtest/gtest.h>

#include "lathe/model/moe_ring.h"

namespace lathe::test {
namespace {

TEST(ExpertBuffer, RowsOfALargeModel) {
  // Eight ranks with 64 of 512 experts each, ten per token, chunks of 8192 tokens.
  const auto rows = [](double factor) { return expert_buffer_rows(8192, 10, 8, 64, factor); };
  EXPECT_EQ(rows(2.75), 225280);
  EXPECT_EQ(rows(2), 163840);
  EXPECT_EQ(rows(-1), 655360);
  EXPECT_EQ(rows(0), 655360);
  EXPECT_EQ(rows(8), 655360);
  EXPECT_EQ(rows(100), 655360) << "more rows than slots";
}

TEST(ExpertBuffer, WithoutACapWhatCanCome) {
  EXPECT_EQ(expert_buffer_rows(5, 4, 3, 2, -1), 3 * 5 * 2) << "a token can choose two experts here";
  EXPECT_EQ(expert_buffer_rows(5, 4, 3, 7, -1), 3 * 5 * 4);
  EXPECT_EQ(expert_buffer_rows(5, 4, 3, 0, -1), 0);
  EXPECT_EQ(expert_buffer_rows(0, 4, 3, 2, -1), 0);
}

TEST(ExpertBuffer, PartsOfARowAreCutOff) {
  EXPECT_EQ(expert_buffer_rows(5, 3, 4, 2, 1.1), 16);  // 16.5
  EXPECT_EQ(expert_buffer_rows(5, 3, 4, 2, 0.05), 0);
}

}  // namespace
}  // namespace lathe::test
