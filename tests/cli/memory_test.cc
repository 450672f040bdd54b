// What cannot fit into memory is refused with numbers, before it is allocated.
#include "cli/golden_run.h"

namespace lathe {
namespace {

class Memory : public GoldenRun {};

TEST_F(Memory, RowsThatCannotFitAreRefusedBeforeTheyAreAllocated) {
  const std::vector<std::string> rows{"--set", "data.row_length=1073741824", "--set",
                                      "data.rows_per_micro_batch=1"};
  expect_refused(train(rows), 2,
                 "error: data.row_length: 1 row(s) of 1073741824 tokens need at least 696.00 GiB ");
  expect_refused(score(rows), 2,
                 "error: data.row_length: 1 row(s) of 1073741824 tokens need at least 360.00 GiB ");
  expect_refused(score({"--set", "data.rows_per_micro_batch=1048576", "--set", "data.row_length=1024"}), 2,
                 "error: data.row_length: 1048576 row(s) of 1024 tokens need at least 360.00 GiB ");
}

// 46452 parameters in f32: value, gradient, two moments.
TEST_F(Memory, WhatIsHeldFromStepToStepIsAMetric) {
  EXPECT_EQ(train().code, 0);
  EXPECT_NE(bytes("run/metrics.jsonl").find("\"perf/state_mem_bytes\":743232.0"), std::string::npos)
      << bytes("run/metrics.jsonl");
}

}  // namespace
}  // namespace lathe
