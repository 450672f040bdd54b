#include "lathe/loop/setup.h"

#include <gtest/gtest.h>

#include "lathe/mesh/plan_communicator.h"

#include "support/temp_folder.h"

namespace lathe {
namespace {

using test::error_of;

int64_t multiple_of(int64_t row_length, int64_t chunks, const MeshShape& mesh) {
  RunConfig config;
  config.data.row_length = row_length;
  config.moe.token_chunks = chunks;
  const auto memory = make_counting_memory();
  const auto communicator = make_plan_communicator(mesh, 0, *memory);
  return micro_batch_options(config, ModelConfig{}, *communicator).share.length_multiple;
}

TEST(TokenChunks, FillRowsUpALittle) {
  EXPECT_EQ(multiple_of(256, 4, {.context = 2}), 64);
  EXPECT_EQ(multiple_of(1000, 4, {.context = 2}), 64);  // to 1024
  EXPECT_EQ(multiple_of(20, 1, {.context = 8}), 64);    // what context needs is not the chunks' fault
  EXPECT_EQ(multiple_of(20, 1, {}), 1);
}

TEST(TokenChunks, AreRefusedWhereTheyWouldMultiplyTheWork) {
  EXPECT_EQ(
      error_of(ErrorKind::kConfig, [] { static_cast<void>(multiple_of(256, 64, {.context = 4})); }),
      "moe.token_chunks: 64 chunks over 4 context rank(s) would fill rows of 256 up to 2048 positions | "
      "use at most 9, or a data.row_length that is a multiple of 2048");
  EXPECT_EQ(
      error_of(ErrorKind::kConfig, [] { static_cast<void>(multiple_of(256, 1000, {.expert = 2})); }),
      "moe.token_chunks: 1000 chunks over 1 context rank(s) would fill rows of 256 up to 1000 positions | "
      "use at most 256, or a data.row_length that is a multiple of 1000");
}

}  // namespace
}  // namespace lathe
