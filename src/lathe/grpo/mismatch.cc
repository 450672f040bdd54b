#include "lathe/grpo/mismatch.h"

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

constexpr double kExponentLimit = 20;
constexpr double kOutlier = 10;
constexpr double kEmptyGuard = 1e-8;

template <size_t N>
size_t bin(const std::array<double, N>& edges, double value) {
  return static_cast<size_t>(std::upper_bound(edges.begin(), edges.end(), value) - edges.begin());
}

void add_token(double d, double rollout, size_t eighth, LossStats& s) {
  const double clipped = std::clamp(d, -kExponentLimit, kExponentLimit);
  const double ratio = std::exp(clipped);
  s.mismatch_tokens += 1;
  s.mismatch_kl_sum += ratio - clipped - 1;
  s.mismatch_sum += d;
  s.mismatch_abs_sum += std::abs(d);
  s.mismatch_prob_error_sum += std::exp(std::abs(clipped));
  s.mismatch_ratio_sum += ratio;
  s.mismatch_outliers += std::abs(d) > kOutlier ? 1 : 0;
  s.mismatch_abs_max = std::max(s.mismatch_abs_max, std::abs(d));
  s.mismatch_ratio_max = std::max(s.mismatch_ratio_max, ratio);
  s.mismatch_ratio_min = std::min(s.mismatch_ratio_min, ratio);
  const size_t size = bin(LossStats::kGapEdges, d);
  s.gap_count[size] += 1;
  s.gap_sum[size] += d;
  s.position_count[eighth] += 1;
  s.position_sum[eighth] += d;
  s.position_abs_sum[eighth] += std::abs(d);
  const size_t confidence = bin(LossStats::kConfidenceEdges, rollout);
  s.confidence_count[confidence] += 1;
  s.confidence_sum[confidence] += d;
}

}  // namespace

SamplerGap sampler_gap(const LossInputs& in, std::span<const uint8_t> scored,
                       std::span<const int64_t> scored_count) {
  SamplerGap out;
  if (in.rollout_logprobs.empty()) return out;
  const size_t n = in.logprobs.size();
  out.gap.assign(n, 0.0);
  out.finite.assign(n, 0);
  out.ratio.assign(scored_count.size(), 0.0);
  for (size_t i = 0; i < n; ++i) {
    if (scored[i] == 0) continue;
    const double gap = in.logprobs[i] - in.rollout_logprobs[i];
    if (!std::isfinite(gap)) continue;
    out.gap[i] = gap;
    out.finite[i] = 1;
    out.ratio[static_cast<size_t>(in.sequence[i])] += gap;
  }
  for (size_t s = 0; s < scored_count.size(); ++s) {
    out.ratio[s] = std::exp(out.ratio[s] / (static_cast<double>(scored_count[s]) + kEmptyGuard));
  }
  return out;
}

void add_mismatch_stats(const LossInputs& in, const SamplerGap& gap, std::span<const uint8_t> scored,
                        std::span<const int64_t> scored_count, LossStats& stats) {
  if (!gap.present()) return;
  std::vector<int64_t> seen(scored_count.size(), 0);
  for (size_t i = 0; i < scored.size(); ++i) {
    if (scored[i] == 0) continue;
    const auto s = static_cast<size_t>(in.sequence[i]);
    const auto eighth = static_cast<size_t>(seen[s]++ * 8 / scored_count[s]);
    if (gap.finite[i] != 0) add_token(gap.gap[i], in.rollout_logprobs[i], eighth, stats);
  }
  for (size_t s = 0; s < scored_count.size(); ++s) {
    if (scored_count[s] == 0) continue;
    stats.seq_ratio_count += 1;
    stats.seq_ratio_sum += gap.ratio[s];
    stats.seq_ratio_max = std::max(stats.seq_ratio_max, gap.ratio[s]);
    stats.seq_ratio_min = std::min(stats.seq_ratio_min, gap.ratio[s]);
  }
}

}  // namespace lathe
