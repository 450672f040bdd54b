// Gradients with bf16 products point where those of f32 do, tensor by tensor.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

// Tensors whose gradient is below the floor, a part of the norm of all gradients, hold sums that cancel: of those
// rounding is all there is.
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

// Each run with its own router, on a model that is hard to round: depth for errors to grow, and small experts of which
// many are near a tie.
ModelConfig near_ties() {
  ModelConfig config = tiny_config({}, false);
  for (int i = 0; i < 3; ++i) {
    for (const LayerKind& layer : hybrid_layers()) config.layers.push_back(layer);
  }
  config.num_experts = 16;
  config.num_experts_per_tok = 4;
  return config;
}

void expect_gradients_agree(uint64_t seed) {
  const ModelConfig config = near_ties();
  const auto batches = tiny_batches(random_trajectories(config, {9, 23, 2, 14, 31, 40, 64, 50}, seed),
                                    {.rows = 2, .row_length = 64, .alignment = 16}, false);
  const auto gradients = [&](DType compute) {
    EngineOptions options = tiny_options();
    options.compute = compute;
    TinyEngine tiny(config, cpu_f32(2), options, seed);
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

TEST(Bf16Compute, GradientsPointWhereThoseOfF32Do) {
  for (const uint64_t seed : {3, 4}) expect_gradients_agree(seed);
}

}  // namespace
}  // namespace lathe::test
