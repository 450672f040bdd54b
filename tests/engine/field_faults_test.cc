// Experts, padding and memory of a step, on whole models: faults that users of other trainers met
// (docs/field_faults.md).
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "lathe/engine/rehearsal.h"
#include "lathe/head/known_cotangent.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

std::vector<MicroBatch> batches_of(const ModelConfig& config, int64_t row_length) {
  return tiny_batches(random_trajectories(config, {9, 23, 2, 14, 31}, 3),
                      {.rows = 2, .row_length = row_length, .alignment = 1}, false);
}

// All tokens go to experts 0, 1 and 2 of 5; what memory held before must not show in the others' gradients.
TEST(FieldExperts, ThoseWithoutTokensHaveGradientsOfExactlyZero) {
  const ModelConfig config = tiny_config(hybrid_layers());
  auto batches = batches_of(config, 64);
  for (MicroBatch& batch : batches) {
    for (int64_t layer = 0; layer < config.num_moe_layers(); ++layer) {
      auto& forced = batch.forced_experts.emplace_back();
      for (int64_t t = 0; t < batch.tokens(); ++t) forced.insert(forced.end(), {2, 0, 1});
    }
  }
  TinyEngine tiny(config, cpu_f32(2), tiny_options());  // memory is handed out full of NaN
  const auto gradients = tiny.gradients(batches);
  const auto& parameters = tiny.engine().store().parameters();
  int checked = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const ParameterRole role = parameters[p].spec->role;
    if (role != ParameterRole::kExpertsGateUp && role != ParameterRole::kExpertsDown) continue;
    const size_t each = gradients[p].size() / static_cast<size_t>(config.num_experts);
    for (size_t e = 0; e < static_cast<size_t>(config.num_experts); ++e) {
      const auto begin = gradients[p].begin() + static_cast<std::ptrdiff_t>(e * each);
      const bool zero =
          std::all_of(begin, begin + static_cast<std::ptrdiff_t>(each), [](double g) { return g == 0; });
      EXPECT_EQ(zero, e > 2) << parameters[p].spec->name() << " expert " << e;
      ++checked;
    }
  }
  EXPECT_EQ(checked, 20);
}

TEST(FieldExperts, FrozenOnesLeaveANormOfTheRest) {
  const ModelConfig config = tiny_config(hybrid_layers());
  EngineOptions options = tiny_options();
  options.trainable = {"layernorm", "lm_head"};
  TinyEngine tiny(config, cpu_f32(1), options);
  const StepResult result = tiny.step(batches_of(config, 64));
  EXPECT_TRUE(std::isfinite(result.update.grad_norm));
  EXPECT_GT(result.update.grad_norm, 0);
  EXPECT_FALSE(result.update.skipped);
}

// The load of experts counts real tokens: rows twice as long, half of them padding, say the same.
TEST(FieldExperts, PaddingIsNotPartOfTheLoad) {
  const ModelConfig config = tiny_config(hybrid_layers());
  const auto load = [&](int64_t row_length) {
    TinyEngine tiny(config, cpu_f32(1), tiny_options());
    return tiny.step(batches_of(config, row_length)).moe_max_load;
  };
  EXPECT_GT(load(48), 1);
  EXPECT_EQ(load(48), load(128));
}

// Every gradient 1: the norm is the root of the number of parameters, each counted once.
TEST(FieldNorm, EveryParameterCountsOnce) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = tiny_config(hybrid_layers(), tied);
    TinyEngine tiny(config, cpu_f32(2), tiny_options());
    const std::unique_ptr<Communicator> communicator = make_solo_communicator();
    double norm = 0;
    tiny.engine().device_thread().run([&] {
      ParameterStore& store = tiny.engine().store();
      Optimizer optimizer(tiny.device(), *communicator, store, {}, 1);
      for (Parameter& parameter : store.parameters()) {
        const View gradient = store.target(parameter.spec->role, parameter.spec->layer);
        tiny.device().kernels.fill(*tiny.device().queue, 1, gradient);
      }
      norm = optimizer.update(0, 1, 0).grad_norm;
    });
    EXPECT_NEAR(norm, std::sqrt(static_cast<double>(parameter_count(config))), 1e-9 * norm);
  }
}

// A row of 11600 tokens with 200 that are trained, a vocabulary of 248320, on a device that holds nothing.
TEST(FieldMemory, LogitsAreThoseOfABlockOfTrainedTokens) {
  ModelConfig config = tiny_config({{MixerKind::kFullAttention, MlpKind::kDense}}, true);
  config.vocab_size = 248320;
  const auto peak = [&](double entropy_coef) {
    EngineOptions options = tiny_options();
    options.grpo.entropy_coef = entropy_coef;
    TinyEngine tiny(config, cpu_f32(1), options);
    MicroBatch batch = largest_micro_batch(1, 11600);
    const auto keep = [](auto& values) { values.resize(200); };
    keep(batch.hidden_index);
    keep(batch.temperature);
    keep(batch.sequence);
    keep(batch.completion_position);
    keep(batch.advantage);
    return tiny.engine().rehearse(batch, 1).use;
  };
  const MemoryUse use = peak(0);
  const int64_t model =
      use.of(MemoryKind::kWeights) + use.of(MemoryKind::kGradients) + use.of(MemoryKind::kOptimizer);
  EXPECT_LT(use.total() - model, int64_t{1} << 30);
  EXPECT_GE(use.total() - model, known_cotangent_block(248320, DType::kF32) * 248320 * 4);
  EXPECT_LT(std::abs(static_cast<double>(peak(0.01).total() - use.total())),
            0.03 * static_cast<double>(use.total()));
}

}  // namespace
}  // namespace lathe::test
