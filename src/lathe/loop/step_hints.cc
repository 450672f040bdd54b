#include "lathe/loop/step_hints.h"

#include <cmath>

#include <fmt/format.h>

namespace lathe {
namespace {

constexpr const char* kPrefix = "said/";
constexpr double kUsualRatio = 0.01;     // the mean ratio's distance from 1 that rounding may make
constexpr double kSystematicGap = 0.02;  // nats; rounding of bf16 weights makes less
constexpr double kOneSided = 0.7;        // |mean gap| / mean |gap|
constexpr double kFewestTokens = 100;

using Metrics = std::vector<std::pair<std::string, double>>;

// 0 for a metric that is not there.
double value_of(const Metrics& metrics, const std::string& name) {
  for (const auto& [metric, value] : metrics) {
    if (metric == name) return value;
  }
  return 0;
}

Hint first_step(const Metrics& metrics) {
  const double ratio = value_of(metrics, "policy/ratio_mean");
  if (std::abs(ratio - 1) > kUsualRatio) {
    return {
        true,
        fmt::format("step 1: the mean ratio is {:.4g}, expected 1 before the first update: the old_logprobs "
                    "are of other weights, or of another temperature than the line says",
                    ratio)};
  }
  return {
      false,
      fmt::format("step 1: mean ratio {:.4g}, clip {:.1f}%, as it must be before the first update; the loss "
                  "({:.2g}) then only says how the advantages average out: judge by reward and grad",
                  ratio, 100 * value_of(metrics, "policy/clip_frac"), value_of(metrics, "policy/loss"))};
}

Hint one_sided_gap(int64_t step, const Metrics& metrics) {
  const double mean = value_of(metrics, "mismatch/mean");
  const std::string what = fmt::format(
      "step {}: the sampler's log-probs are {} than the trainer's by {:.3g} on average, "
      "almost everywhere",
      step, mean < 0 ? "higher" : "lower", std::abs(mean));
  return {true,
          mean < 0
              ? what +
                    ": did it sample with top-p or top-k and report log-probs of what was left? Ratios to "
                    "the sampler are then off by that factor at every token"
              : what + ": is `temperature` recorded as it was sampled, and did these weights sample?"};
}

bool is_one_sided(const Metrics& metrics) {
  const double mean = std::abs(value_of(metrics, "mismatch/mean"));
  return value_of(metrics, "mismatch/tokens") >= kFewestTokens && mean >= kSystematicGap &&
         mean >= kOneSided * value_of(metrics, "mismatch/abs_mean");
}

Hint dropped_slots(int64_t step, double dropped) {
  return {
      true,
      fmt::format("step {}: {:.2g}% of the tokens' choices found no room with their experts and were dropped "
                  "(moe/dropped_frac), so that log-probs and ratios are not quite the model's: raise "
                  "moe.ragged_buffer_factor, or set it to -1",
                  step, 100 * dropped)};
}

}  // namespace

bool StepHints::first_time(const std::string& name, int64_t step) {
  return said_.try_emplace(kPrefix + name, std::vector<double>{static_cast<double>(step)}).second;
}

std::vector<Hint> StepHints::check(int64_t step, const Metrics& metrics) {
  std::vector<Hint> hints;
  const double dropped = value_of(metrics, "moe/dropped_frac");
  if (dropped > 0 && first_time("dropped_slots", step)) hints.push_back(dropped_slots(step, dropped));
  // What was dropped moves the ratio, too.
  if (step == 1 && dropped == 0 && value_of(metrics, "policy/active_sequences") > 0)
    hints.push_back(first_step(metrics));
  const double groups = value_of(metrics, "group/count");
  if (groups > 0 && value_of(metrics, "adv/nonzero_frac") == 0) {
    if (value_of(metrics, "group/too_small") == groups) {
      if (first_time("lonely", step)) {
        hints.push_back(
            {true, fmt::format("step {}: every group has fewer than two trajectories, so that every "
                               "advantage is 0 and nothing is learned: is group_id missing or unique?",
                               step)});
      }
    } else if (value_of(metrics, "group/zero_std_frac") * groups + value_of(metrics, "group/too_small") >=
                   groups &&
               first_time("no_spread", step)) {
      hints.push_back(
          {true, fmt::format("step {}: the rewards within every group are equal, so that every advantage is "
                             "0 and nothing is learned from it: prompts that are always or never solved "
                             "teach nothing, nor do parts of a reward that cancel",
                             step)});
    }
  }
  if (is_one_sided(metrics) && first_time("one_sided_gap", step))
    hints.push_back(one_sided_gap(step, metrics));
  return hints;
}

void StepHints::restore(const std::map<std::string, std::vector<double>>& said) {
  for (const auto& [name, steps] : said) {
    if (name.starts_with(kPrefix)) said_[name] = steps;
  }
}

}  // namespace lathe
