// Gradients with bf16 products point where those of f32 do, tensor by tensor.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "lathe/core/rng.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

// Rounding to bf16 moves an element by up to 0.4 %; through two layers and back the direction of a gradient keeps a
// cosine above 0.995 here. Tensors whose gradient is below the floor, a part of the norm of all gradients, hold sums that
// cancel: of those rounding is all there is.
constexpr double kCosine = 0.99;
constexpr double kFloor = 1e-3;

struct Compared {
  double cosine = 0;
  double size = 0;
};

Compared compare(const std::vector<double>& a, const std::vector<double>& b) {
  double dot = 0;
  double a_square = 0;
  double b_square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * b[i];
    a_square += a[i] * a[i];
    b_square += b[i] * b[i];
  }
  return {dot / std::sqrt(std::max(a_square * b_square, 1e-300)), std::sqrt(a_square)};
}

// The same experts in both runs: near a tie rounding may choose others, and then the two are gradients of different
// functions.
void force_experts(const ModelConfig& config, std::vector<MicroBatch>& batches) {
  for (size_t b = 0; b < batches.size(); ++b) {
    for (int64_t layer = 0; layer < config.num_moe_layers(); ++layer) {
      const CounterRng rng(17, b * 100 + static_cast<uint64_t>(layer));
      auto& forced = batches[b].forced_experts.emplace_back();
      for (int64_t t = 0; t < batches[b].tokens(); ++t) {
        const auto first = static_cast<int64_t>(rng.uniform(static_cast<uint64_t>(t)) *
                                                static_cast<double>(config.num_experts));
        for (int64_t k = 0; k < config.num_experts_per_tok; ++k) {
          forced.push_back(static_cast<int32_t>((first + k) % config.num_experts));
        }
      }
    }
  }
}

TEST(Bf16Compute, GradientsPointWhereThoseOfF32Do) {
  const ModelConfig config = tiny_config(hybrid_layers());
  auto batches = tiny_batches(random_trajectories(config, {9, 23, 2, 14, 31, 40, 64, 50}, 3),
                              {.rows = 2, .row_length = 64, .alignment = 16}, false);
  force_experts(config, batches);
  const auto gradients = [&](DType compute) {
    EngineOptions options = tiny_options();
    options.compute = compute;
    TinyEngine tiny(config, cpu_f32(2), options);
    return tiny.gradients(batches);
  };
  const auto exact = gradients(DType::kF32);
  const auto rounded = gradients(DType::kBF16);
  EXPECT_NE(exact, rounded);
  double total = 0;
  for (const auto& tensor : exact) {
    for (const double g : tensor) total += g * g;
  }
  total = std::sqrt(total);
  TinyEngine names(config, cpu_f32(1), tiny_options());
  size_t judged = 0;
  for (size_t p = 0; p < exact.size(); ++p) {
    const Compared compared = compare(exact[p], rounded[p]);
    if (compared.size < kFloor * total) continue;
    ++judged;
    EXPECT_GT(compared.cosine, kCosine) << names.engine().store().parameters()[p].spec->name();
  }
  EXPECT_GE(judged, exact.size() * 3 / 4);
}

}  // namespace
}  // namespace lathe::test
