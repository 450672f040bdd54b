#include "lathe/loop/step_report.h"

#include <utility>

#include "lathe/core/cpu.h"
#include "lathe/loop/memory_report.h"

namespace lathe {

std::vector<Metric> StepReporter::step_metrics(const StepResult& result, const StepInfo& info,
                                               double step_s) const {
  const double device_s = result.fwd_bwd_s + result.update_s;
  return {{"optim/grad_norm", result.update.grad_norm},
          {"optim/lr", result.update.learning_rate},
          {"optim/skipped", result.update.skipped ? 1 : 0},
          {"head/restarts", static_cast<double>(result.head_restarts)},
          {"moe/max_load", result.moe_max_load},
          {"moe/dropped_frac", 0},
          {"time/startup_s", startup_s_},
          {"time/step_s", step_s},
          {"time/fwd_bwd_s", result.fwd_bwd_s},
          {"time/update_s", result.update_s},
          {"time/data_s", info.data_s},
          {"time/save_wait_s", result.save_wait_s},
          {"time/idle_s", result.idle_s},
          {"perf/tokens_per_s", static_cast<double>(info.trained_tokens) / device_s},
          {"perf/model_flops_per_s", result.flops / device_s},
          {"perf/peak_mem_bytes", static_cast<double>(device_.memory->peak().total())},
          {"perf/peak_rss_bytes", static_cast<double>(peak_resident_bytes())}};
}

void StepReporter::report(const StepResult& result, StepInfo info, const Notes& notes) {
  const double now = steady_seconds();
  const std::vector<Metric> rest = step_metrics(result, info, now - std::exchange(last_report_, now));
  std::vector<Metric> metrics = std::move(info.metrics);
  const auto loss = loss_metrics(config_.grpo, result.stats, result.denominator);
  metrics.insert(metrics.end(), loss.begin(), loss.end());
  metrics.insert(metrics.end(), rest.begin(), rest.end());
  folder_.write_metrics(result.step, metrics, notes);

  const auto value = [&loss](const char* name) {
    const auto found = loss.find(name);
    return found == loss.end() ? 0.0 : found->second;
  };
  log_.info(
      "step {}/{} | reward {:.3f} | loss {:.4g} | kl {:.2g} | clip {:.1f}% | grad {:.3g} | {:.0f} tok/s | "
      "{:.2f} GiB",
      result.step, config_.run.steps, info.reward_mean, value("policy/loss"), value("policy/approx_kl"),
      100 * value("policy/clip_frac"), result.update.grad_norm,
      static_cast<double>(info.trained_tokens) / (result.fwd_bwd_s + result.update_s),
      static_cast<double>(device_.memory->peak().total()) / (1 << 30));
  if (const int64_t planned = std::exchange(planned_memory_, 0); planned > 0) {
    log_.info("memory at the peak of the first step: {}, planned {}; the process holds {}",
              bytes_text(device_.memory->peak().total()), bytes_text(planned),
              bytes_text(peak_resident_bytes()));
  }
  if (result.stats.nonfinite_tokens > 0) {
    log_.warning("step {}: {} scored tokens are not in the loss, for their log-probs are not finite",
                 result.step, result.stats.nonfinite_tokens);
  }
  if (result.update.skipped) log_.warning("step {} is skipped: {}", result.step, result.update.reason);
}

}  // namespace lathe
