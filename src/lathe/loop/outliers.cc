#include "lathe/loop/outliers.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace lathe {
namespace {

constexpr size_t kWindow = 32;
constexpr size_t kFewest = 8;
constexpr double kDeviations = 6;
constexpr double kRelativeFloor = 0.01;
constexpr double kFloor = 1e-6;

struct Watched {
  const char* metric;
  bool both_sides;
  const char* advice;
};
constexpr Watched kWatched[] = {
    {"policy/loss", true, "look at the rewards and advantages of this step's rollouts"},
    {"optim/grad_norm", false,
     "look at this step's rollouts; optimizer.spike_window skips such steps, a lower learning rate avoids "
     "them"},
    {"mismatch/kl", false,
     "sampler and trainer disagree more than before: look at policy_version, temperature and the sampler's "
     "weights"},
};

struct Spread {
  double mean = 0;
  double std = 0;
};

Spread spread_of(const std::deque<double>& values) {
  Spread spread;
  for (const double value : values) spread.mean += value / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.std = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return spread;
}

bool is_outlier(const Watched& watched, double value, const Spread& spread) {
  const double deviation = std::max({spread.std, kRelativeFloor * std::abs(spread.mean), kFloor});
  const double gap = value - spread.mean;
  return (watched.both_sides ? std::abs(gap) : gap) > kDeviations * deviation;
}

void push(std::deque<double>& window, double value) {
  window.push_back(value);
  if (window.size() > kWindow) window.pop_front();
}

}  // namespace

std::vector<std::string> OutlierWatch::check(int64_t step,
                                             const std::vector<std::pair<std::string, double>>& metrics) {
  std::vector<std::string> lines;
  for (const Watched& watched : kWatched) {
    const auto found = std::find_if(metrics.begin(), metrics.end(),
                                    [&](const auto& metric) { return metric.first == watched.metric; });
    if (found == metrics.end() || !std::isfinite(found->second)) continue;
    std::deque<double>& window = windows_[watched.metric];
    if (window.size() >= kFewest) {
      const Spread spread = spread_of(window);
      if (is_outlier(watched, found->second, spread)) {
        lines.push_back(fmt::format(
            "step {}: {} is {:.4g}, the {} steps before it had {:.4g} with a deviation of "
            "{:.2g}: {}",
            step, watched.metric, found->second, window.size(), spread.mean, spread.std, watched.advice));
      }
    }
    push(window, found->second);
  }
  return lines;
}

std::map<std::string, std::vector<double>> OutlierWatch::windows() const {
  std::map<std::string, std::vector<double>> windows;
  for (const auto& [metric, window] : windows_) windows[metric].assign(window.begin(), window.end());
  return windows;
}

void OutlierWatch::restore(const std::map<std::string, std::vector<double>>& windows) {
  windows_.clear();
  for (const Watched& watched : kWatched) {
    const auto found = windows.find(watched.metric);
    if (found == windows.end()) continue;
    for (const double value : found->second) {
      if (std::isfinite(value)) push(windows_[watched.metric], value);
    }
  }
}

}  // namespace lathe
