#include "lathe/loop/memory_check.h"

#include <gtest/gtest.h>

#include "lathe/core/error.h"

#include "support/temp_folder.h"

namespace lathe {
namespace {

using test::error_of;

// llama of the goldens: 46452 parameters, hidden size 42, 3 layers.
class MemoryCheck : public ::testing::Test {
 protected:
  RunConfig config;
  ModelConfig model = read_model_config(std::string(LATHE_GOLDENS) + "/llama/model", nullptr);
  void SetUp() override { config.model.path = "m"; }
};

TEST_F(MemoryCheck, CountsWhatIsThereAtLeast) {
  EXPECT_EQ(least_memory(config, model, 100, false).model, 46452 * 4);
  EXPECT_EQ(least_memory(config, model, 100, true).model, 46452 * 16);
  config.model.weight_dtype = "bf16";
  EXPECT_EQ(least_memory(config, model, 100, true).model, 46452 * 18);
  config.grpo.reference_initial = true;
  config.grpo.beta = 0.1;
  EXPECT_EQ(least_memory(config, model, 100, true).model, 46452 * 20);
  config.model.trainable = {"embed"};
  EXPECT_EQ(least_memory(config, model, 100, true).model, 46452 * 4);
  config.data.rows_per_micro_batch = 3;
  EXPECT_EQ(least_memory(config, model, 100, true).micro_batch, 300 * (24 + 4 * 42 * 4));
  EXPECT_EQ(least_memory(config, model, 100, false).micro_batch, 300 * (24 + 4 * 42 * 2));
}

TEST_F(MemoryCheck, RefusesWithNumbersAndWhatWouldFit) {
  const int64_t available = 46452 * 16 + 1000 * 696;
  check_memory(config, model, 1000, true, available);
  EXPECT_EQ(error_of(ErrorKind::kConfig, [&] { check_memory(config, model, 1001, true, available); }),
            "data.row_length: 1 row(s) of 1001 tokens need at least 680.4 KiB beside 725.8 KiB for the "
            "model, but 1.4 "
            "MiB of memory are free | a micro-batch here can have 1000 tokens at the very most: lower "
            "data.row_length "
            "or data.rows_per_micro_batch");
  EXPECT_EQ(error_of(ErrorKind::kConfig, [&] { check_memory(config, model, 1, true, 700000); }),
            "m: its 46452 parameters alone need 725.8 KiB, but 683.6 KiB of memory are free | use a machine "
            "with more "
            "memory, model.weight_dtype: bf16, or a smaller model");
}

}  // namespace
}  // namespace lathe
