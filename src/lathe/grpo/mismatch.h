// The gap between live and rollout log-probs: what gates, weights and mismatch statistics share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lathe/grpo/loss.h"

namespace lathe {

// Empty vectors when there are no rollout log-probs.
struct SamplerGap {
  std::vector<double> gap;      // [n] live - rollout; 0 where not finite
  std::vector<uint8_t> finite;  // [n]
  std::vector<double>
      ratio;  // [sequences] exp of the mean gap over scored tokens, those without a gap counted as 0

  [[nodiscard]] bool present() const { return !finite.empty(); }
};

// scored [n]; scored_count [sequences].
[[nodiscard]] SamplerGap sampler_gap(const LossInputs& inputs, std::span<const uint8_t> scored,
                                     std::span<const int64_t> scored_count);
void add_mismatch_stats(const LossInputs& inputs, const SamplerGap& gap, std::span<const uint8_t> scored,
                        std::span<const int64_t> scored_count, LossStats& stats);

}  // namespace lathe
