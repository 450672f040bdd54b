// Settings of the optimizer step (run file section `optimizer`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

enum class LrSchedule : uint8_t { kConstant, kLinear, kCosine };

struct OptimizerConfig {
  double learning_rate = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  std::vector<std::string> weight_decay_exclude;  // regexes on Hugging Face names
  double max_grad_norm = 1.0;                     // 0 = off
  int64_t warmup_steps = 0;
  LrSchedule schedule = LrSchedule::kConstant;
  double min_lr_ratio = 0.1;
  bool skip_nonfinite = true;
  int64_t spike_window = 0;  // 0 = off
  double spike_factor = 6;
};

// Learning rate of optimizer step `step` (0-based) of `total_steps`: step < warmup: lr step / warmup; then constant, or
// x = (step - warmup) / (total - warmup - 1) (1 if that length is < 2, clamped to 1) with the final lr * min_lr_ratio:
// cosine a = (cos(pi x) + 1) / 2, linear a = 1 - x, lr (a + (1 - a) min_lr_ratio).
[[nodiscard]] double learning_rate(const OptimizerConfig& config, int64_t step, int64_t total_steps);

}  // namespace lathe
