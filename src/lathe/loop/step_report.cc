#include "lathe/loop/step_report.h"

#include <numeric>
#include <utility>

#include "lathe/core/cpu.h"
#include "lathe/loop/memory_report.h"

namespace lathe {
namespace {

// What this rank holds from step to step: weights, gradients, optimizer state.
int64_t state_bytes(const MemoryUse& live) {
  return live.of(MemoryKind::kWeights) + live.of(MemoryKind::kGradients) + live.of(MemoryKind::kOptimizer);
}

}  // namespace

std::vector<Metric> StepReporter::step_metrics(const StepResult& result, const StepInfo& info,
                                               double step_s) const {
  const double device_s = result.fwd_bwd_s + result.update_s;
  return {{"optim/grad_norm", result.update.grad_norm},
          {"optim/lr", result.update.learning_rate},
          {"optim/skipped", result.update.skipped ? 1 : 0},
          {"head/restarts", static_cast<double>(result.head_restarts)},
          {"moe/max_load", result.moe_max_load},
          {"moe/dropped_frac", result.moe_dropped_frac},
          {"time/startup_s", startup_s_},
          {"time/step_s", step_s},
          {"time/fwd_bwd_s", result.fwd_bwd_s},
          {"time/update_s", result.update_s},
          {"time/data_s", info.data_s},
          {"time/wait_s", info.wait_s},
          {"time/save_wait_s", result.save_wait_s},
          {"time/idle_s", result.idle_s},
          {"perf/tokens_per_s", static_cast<double>(info.trained_tokens) / device_s},
          {"perf/model_flops_per_s", result.flops / device_s},
          {"perf/state_mem_bytes", static_cast<double>(state_bytes(device_.memory->live()))},
          {"perf/peak_mem_bytes", static_cast<double>(device_.memory->peak().total())},
          {"perf/peak_rss_bytes", static_cast<double>(peak_resident_bytes())}};
}

RollingStats StepReporter::rolling() const {
  RollingStats rolling = outliers_.windows();
  rolling.merge(hints_.said());
  return rolling;
}

void StepReporter::restore(const RollingStats& rolling) {
  outliers_.restore(rolling);
  hints_.restore(rolling);
}

// " | eta 3 min", or nothing after the last step.
std::string StepReporter::time_left(int64_t step, double step_s) {
  constexpr size_t kSteps = 16;
  step_seconds_.push_back(step_s);
  if (step_seconds_.size() > kSteps) step_seconds_.pop_front();
  const int64_t left = config_.run.steps - step;
  if (left <= 0) return "";
  const double mean = std::accumulate(step_seconds_.begin(), step_seconds_.end(), 0.0) /
                      static_cast<double>(step_seconds_.size());
  return " | eta " + duration_text(static_cast<double>(left) * mean);
}

void StepReporter::report(const StepResult& result, StepInfo info, const Notes& notes) {
  const double now = steady_seconds();
  const double step_s = now - std::exchange(last_report_, now);
  const std::vector<Metric> rest = step_metrics(result, info, step_s);
  std::vector<Metric> metrics = std::move(info.metrics);
  const auto loss = loss_metrics(config_.grpo, result.stats, result.denominator);
  metrics.insert(metrics.end(), loss.begin(), loss.end());
  metrics.insert(metrics.end(), rest.begin(), rest.end());
  Notes all = notes;
  if (result.head_restarts > 0) {
    all.emplace_back(
        "head.restarts",
        fmt::format("{} of the step's micro-batches took two passes: their logits may not be finite",
                    result.head_restarts));
    if (!std::exchange(restart_said_, true)) {
      log_.warning("step {}: {} (head/restarts counts them; said once)", result.step, all.back().second);
    }
  }
  folder_.write_metrics(result.step, metrics, all);
  write_log(result, info, loss, step_s);
  for (const Hint& hint : hints_.check(result.step, metrics)) {
    hint.warning ? log_.write_warning(hint.text) : log_.write_info(hint.text);
  }
  for (const std::string& line : outliers_.check(result.step, metrics)) log_.write_warning(line);
}

void StepReporter::write_log(const StepResult& result, const StepInfo& info,
                             const std::map<std::string, double>& loss, double step_s) {
  const auto value = [&loss](const char* name) {
    const auto found = loss.find(name);
    return found == loss.end() ? 0.0 : found->second;
  };
  log_.info(
      "step {}/{} | reward {:.3f} | loss {:.4g} | kl {:.2g} | clip {:.1f}% | grad {:.3g} | {:.0f} tok/s | "
      "{:.2f} GiB{}",
      result.step, config_.run.steps, info.reward_mean, value("policy/loss"), value("policy/approx_kl"),
      100 * value("policy/clip_frac"), result.update.grad_norm,
      static_cast<double>(info.trained_tokens) / (result.fwd_bwd_s + result.update_s),
      static_cast<double>(device_.memory->peak().total()) / (1 << 30), time_left(result.step, step_s));
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
