#include <algorithm>
#include <cmath>
#include <numbers>

#include "lathe/engine/optimizer_config.h"

namespace lathe {

double learning_rate(const OptimizerConfig& config, int64_t step, int64_t total_steps) {
  const double lr = config.learning_rate;
  if (step < config.warmup_steps)
    return lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  if (config.schedule == LrSchedule::kConstant) return lr;
  const int64_t length = total_steps - config.warmup_steps - 1;
  const double x =
      length < 1
          ? 1.0
          : std::min(1.0, static_cast<double>(step - config.warmup_steps) / static_cast<double>(length));
  const double a = config.schedule == LrSchedule::kCosine ? (std::cos(std::numbers::pi * x) + 1) / 2 : 1 - x;
  return lr * (a + (1 - a) * config.min_lr_ratio);
}

}  // namespace lathe
