// A loss call that owns its arrays, for tests: build it, change it, run it.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "lathe/grpo/loss.h"

namespace lathe {

struct LossBatch {
  std::vector<double> live, entropy, advantage, old, ref, rollout;
  std::vector<uint8_t> mask, overlong;
  std::vector<int32_t> sequence;

  [[nodiscard]] size_t size() const { return live.size(); }
  [[nodiscard]] int64_t sequences() const {
    int32_t last = -1;
    for (const int32_t s : sequence) last = std::max(last, s);
    return std::max(static_cast<int64_t>(overlong.size()), static_cast<int64_t>(last) + 1);
  }
  [[nodiscard]] LossInputs inputs() const {
    LossInputs in;
    in.logprobs = live;
    in.entropy = entropy;
    in.advantage = advantage;
    in.mask = mask;
    in.sequence = sequence;
    in.sequences = sequences();
    in.old_logprobs = old;
    in.ref_logprobs = ref;
    in.rollout_logprobs = rollout;
    in.overlong = overlong;
    return in;
  }
  [[nodiscard]] LossResult run(const GrpoConfig& config) const { return grpo_loss(config, inputs()); }
};

// `lengths` tokens per sequence; about one in four tokens unscored; log-probs that differ by about `spread`.
inline LossBatch random_batch(uint32_t seed, const std::vector<int>& lengths, double spread = 0.15) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0, 1);
  LossBatch b;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const double advantage = normal(engine);
    for (int t = 0; t < lengths[s]; ++t) {
      const double p = -2 * uniform(engine) - 0.05;
      b.live.push_back(p);
      b.old.push_back(p + spread * normal(engine));
      b.ref.push_back(p + 2 * spread * normal(engine));
      b.rollout.push_back(p + spread * normal(engine));
      b.entropy.push_back(3 * uniform(engine));
      b.advantage.push_back(advantage);
      b.mask.push_back(uniform(engine) < 0.75 || t == 0 ? 1 : 0);
      b.sequence.push_back(static_cast<int32_t>(s));
    }
    b.overlong.push_back(s % 4 == 3 ? 1 : 0);
  }
  return b;
}

}  // namespace lathe
