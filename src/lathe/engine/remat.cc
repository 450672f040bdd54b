// Which layers keep what backward needs, and which recompute it from their input.
#include <algorithm>
#include <array>

#include "lathe/engine/engine.h"
#include "lathe/engine/rehearsal.h"

namespace lathe {

void Engine::keep_last_layers(int64_t count) {
  const auto layers = static_cast<int64_t>(config_.layers.size());
  LATHE_CHECK(count >= 0 && count <= layers, "{} of {} layers", count, layers);
  keep_all_.assign(static_cast<size_t>(layers), false);
  // The last layers are the first to be needed again.
  for (int64_t i = layers - count; i < layers; ++i) keep_all_[static_cast<size_t>(i)] = true;
  remat_choice_ = count == layers ? "none"
                  : count == 0    ? "full"
                                  : fmt::format("full for the first {} of {} layers", layers - count, layers);
}

void Engine::plan_remat(int64_t rows, int64_t row_length) {
  const auto layers = static_cast<int64_t>(config_.layers.size());
  if (options_.remat != RematPolicy::kAuto) {
    keep_last_layers(options_.remat == RematPolicy::kNone ? layers : 0);
    return;
  }
  const int64_t groups = communicator_.size(kAxesRows);
  const int64_t multiple = row_multiple(communicator_.size(kAxisContext), options_.token_chunks);
  const MicroBatch largest =
      largest_micro_batch((rows + groups - 1) / groups, (row_length + multiple - 1) / multiple * multiple);
  const auto peak = [&](int64_t kept) { return rehearse(largest, kept).use.total(); };
  int64_t fits = 0;  // layers that may keep everything
  int64_t needed = peak(layers);
  if (needed <= options_.memory_budget) {
    fits = layers;
  } else {
    for (int64_t low = 1, high = layers - 1; low <= high;) {
      const int64_t middle = (low + high) / 2;
      if (peak(middle) <= options_.memory_budget) {
        fits = middle;
        low = middle + 1;
      } else {
        high = middle - 1;
      }
    }
  }
  // What a layer recomputes it exchanges again: all ranks keep as many as the one with the least room.
  double recomputed = static_cast<double>(layers - fits);
  communicator_.all_reduce_max(
      {.axes = kAxisAll, .phase = Phase::kPrepare, .tensor = "remat", .channel = Channel::kHost},
      std::span(&recomputed, 1));
  if (const int64_t common = layers - static_cast<int64_t>(recomputed); common != fits || fits != layers) {
    fits = common;
    needed = peak(fits);
  }
  keep_last_layers(fits);
  tell_remat(needed);
}

// Of the rank with the least room.
void Engine::tell_remat(int64_t needed) {
  const std::array own{static_cast<double>(needed), static_cast<double>(options_.memory_budget)};
  const std::vector<std::vector<double>> ranks = of_all_ranks(own, "remat", Channel::kHost);
  const auto tightest = std::min_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a[1] - a[0] < b[1] - b[0]; });
  const std::string where = ranks.size() == 1 ? "" : fmt::format(" on rank {}", tightest - ranks.begin());
  const auto most = static_cast<int64_t>((*tightest)[0]);
  const auto budget = static_cast<int64_t>((*tightest)[1]);
  log_.info("remat.policy auto: {} (needs {} of a budget of {}{})", remat_choice_, bytes_text(most),
            bytes_text(budget), where);
  if (most > budget) {
    log_.warning(
        "run.memory_budget leaves {} for training{}, less than the {} that even remat.policy full needs",
        bytes_text(budget), where, bytes_text(most));
  }
}

}  // namespace lathe
