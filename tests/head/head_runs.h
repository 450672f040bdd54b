// The head's programs, forward and backward, on any device: what the tests of this folder compare.
#pragma once

#include <string>
#include <vector>

#include "lathe/head/known_cotangent.h"
#include "lathe/head/log_prob_head.h"

#include "support/kernel_test.h"

namespace lathe::test {

struct HeadInputs {
  HostArray hidden;
  HostArray table;
  std::vector<int32_t> targets;
  HostArray temperature;
  HostArray dlogp;
  HostArray dentropy;  // rank 0: absent
  HostArray dtable;    // what is there before; rank 0: frozen
};

struct HeadResults {
  HostArray logp;
  HostArray entropy;
  HostArray dhidden;
  HostArray dtable;
  int64_t scratch = 0;  // bytes at the peak
};

// All values are f32 numbers, so that every device gets the same ones.
[[nodiscard]] HeadInputs random_head_inputs(int64_t tokens, int64_t dim, int64_t vocab);

struct HeadWay {
  HeadParams params;
  bool known = false;  // cotangents given while scoring
};
[[nodiscard]] HeadWay chunked(int64_t chunk, DType compute = DType::kF32);
[[nodiscard]] HeadWay local(int64_t chunk, DType compute = DType::kF32);
[[nodiscard]] HeadWay fused(DType compute = DType::kF32);
[[nodiscard]] HeadWay known(DType compute = DType::kF32);
[[nodiscard]] std::string name_of(const HeadWay& way);

[[nodiscard]] HeadResults run_head(const Device& device, const HeadWay& way, const HeadInputs& in,
                                   DType table_type, bool accumulate = true);
// The table in the device's float type.
[[nodiscard]] HeadResults run_head(const Device& device, const HeadWay& way, const HeadInputs& in);

void expect_alike(const HeadResults& actual, const HeadResults& expected, double tolerance,
                  const std::string& what);
void expect_same_results(const HeadResults& actual, const HeadResults& expected, const std::string& what);

}  // namespace lathe::test
