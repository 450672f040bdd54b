// `lathe bench step`: optimizer steps of the trainer program on a random-weight model of any config.json, against the rate of
// the library's matrix products in the same run. Checked first: the gradient of a small model with the same kinds of layers
// against the reference in double.
#pragma once

#include <cstdint>
#include <string>

#include "lathe/engine/engine.h"

namespace lathe {

struct StepBenchOptions {
  std::string config_path;  // a config.json or its folder
  int64_t tokens = 2048;    // real tokens of a step, at least
  int64_t row_length = 2048;
  int64_t rows_per_micro_batch = 1;
  RematPolicy remat = RematPolicy::kAuto;
  DType compute = DType::kF32;
  int threads = 1;
  Isa isa = Isa::kAvx2;
  int repeats = 5;
};

struct StepBenchReport {
  StepBenchOptions options;
  int64_t dim = 0;
  int64_t vocab = 0;
  int64_t parameters = 0;
  int64_t tokens = 0;           // real
  int64_t computed_tokens = 0;  // with padding
  int64_t scored_tokens = 0;
  double forward_s = 0;  // medians; of all micro-batches of a step
  double backward_s = 0;
  double update_s = 0;
  double flops = 0;  // as perf/model_flops_per_s counts
  double gemm_flops_per_s = 0;
  int64_t peak_extra_bytes = 0;  // activations and scratch at the peak
  std::string remat;
  bool verified = false;
  std::string fault;
  [[nodiscard]] double seconds() const { return forward_s + backward_s + update_s; }
  [[nodiscard]] double ratio_to_gemm() const { return flops / seconds() / gemm_flops_per_s; }
};

// Model errors for a config.json that cannot be used. A program that is not verified is not timed.
[[nodiscard]] StepBenchReport bench_step(const StepBenchOptions& options);

[[nodiscard]] std::string report_text(const StepBenchReport& report);
[[nodiscard]] std::string report_json(const StepBenchReport& report);

}  // namespace lathe
