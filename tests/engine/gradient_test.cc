// The whole program, end to end: loss of a packed micro-batch against every parameter.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "lathe/core/rng.h"
#include "lathe/kernels/access.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

EngineOptions still() {
  EngineOptions options = tiny_options();
  options.optimizer.learning_rate = 0;
  options.optimizer.max_grad_norm = 0;
  return options;
}

// The step's numerator with parameter `index` moved by `amount` along `direction`.
double numerator(TinyEngine& tiny, const std::vector<MicroBatch>& batches, size_t index,
                 const std::vector<double>& direction, double amount) {
  const View value = tiny.engine().store().parameters()[index].master;
  auto* x = elements<double>(value);
  const std::vector<double> before(x, x + value.size());
  for (int64_t i = 0; i < value.size(); ++i) x[i] += amount * direction[static_cast<size_t>(i)];
  const StepResult result = tiny.step(batches);
  std::copy(before.begin(), before.end(), x);
  return result.loss * result.denominator;
}

void check_against_differences(const ModelConfig& config, const EngineOptions& options, uint64_t seed) {
  TinyEngine tiny(config, ref_f64(), options, seed);
  const auto batches = tiny_batches(random_trajectories(config, {9, 23, 2, 14, 31}, seed),
                                    {.rows = 2, .row_length = 48}, true);
  const auto gradients = tiny.gradients(batches);
  auto update = tiny.engine().update();
  static_cast<void>(tiny.engine().result_of(update));
  const auto& parameters = tiny.engine().store().parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    double size = 0;
    for (const double g : gradients[p]) size += g * g;
    size = std::sqrt(size);
    EXPECT_GT(size, 1e-8) << parameters[p].spec->name();
    const CounterRng rng(seed, 5000 + p);
    for (uint64_t trial = 0; trial < 2; ++trial) {
      std::vector<double> direction(gradients[p].size());
      double length = 0;
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] = rng.normal(trial * 100000 + i);
        length += direction[i] * direction[i];
      }
      length = std::sqrt(length);
      double expected = 0;
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] /= length;
        expected += direction[i] * gradients[p][i];
      }
      constexpr double kStep = 1e-5;
      const double slope =
          (numerator(tiny, batches, p, direction, kStep) - numerator(tiny, batches, p, direction, -kStep)) /
          (2 * kStep);
      EXPECT_NEAR(slope, expected, 1e-6 * size) << parameters[p].spec->name();
    }
  }
}

TEST(EndToEndGradient, HybridMoeEqualsDifferences) {
  check_against_differences(tiny_config(hybrid_layers()), still(), 7);
}

TEST(EndToEndGradient, TiedDenseHybridWithEntropyAndKlEqualsDifferences) {
  EngineOptions options = still();
  options.grpo.entropy_coef = 0.3;
  options.grpo.loss_agg_mode = LossAggregation::kTokenMean;
  options.remat = RematPolicy::kFull;
  check_against_differences(tiny_config({{MixerKind::kFullAttention, MlpKind::kDense},
                                         {MixerKind::kLinearAttention, MlpKind::kDense}},
                                        true),
                            options, 11);
}

double relative_difference(const std::vector<std::vector<double>>& a,
                           const std::vector<std::vector<double>>& b) {
  double worst = 0;
  for (size_t p = 0; p < a.size(); ++p) {
    double gap = 0;
    double size = 0;
    for (size_t i = 0; i < a[p].size(); ++i) {
      gap += (a[p][i] - b[p][i]) * (a[p][i] - b[p][i]);
      size += a[p][i] * a[p][i];
    }
    if (size > 0) worst = std::max(worst, std::sqrt(gap / size));
  }
  return worst;
}

TEST(EndToEndGradient, CpuAgreesWithRef) {
  const ModelConfig config = tiny_config(hybrid_layers());
  const auto batches = tiny_batches(random_trajectories(config, {9, 23, 2, 14, 31, 40}, 3),
                                    {.rows = 2, .row_length = 64, .alignment = 16}, true);
  TinyEngine ref(config, ref_f64(), tiny_options());
  TinyEngine cpu(config, cpu_f32(2), tiny_options());
  EXPECT_LT(relative_difference(ref.gradients(batches), cpu.gradients(batches)), 2e-4);
}

TEST(EndToEndGradient, SameBitsTwiceAndForOneAndTwoThreadsAndEveryRemat) {
  const ModelConfig config = tiny_config(hybrid_layers());
  const auto batches =
      tiny_batches(random_trajectories(config, {9, 23, 2, 14, 31}, 3), {.rows = 2, .row_length = 64}, true);
  const auto run = [&](int threads, RematPolicy remat) {
    EngineOptions options = tiny_options();
    options.remat = remat;
    TinyEngine tiny(config, cpu_f32(threads), options);
    for (int i = 0; i < 3; ++i) static_cast<void>(tiny.step(batches));
    return tiny.values();
  };
  const auto first = run(2, RematPolicy::kNone);
  EXPECT_EQ(first, run(2, RematPolicy::kNone));
  EXPECT_EQ(first, run(1, RematPolicy::kNone));
  EXPECT_EQ(first, run(2, RematPolicy::kFull));
}

// The head's programs: the same gradients to rounding, each the same bits for 1 and 2 threads.
TEST(EndToEndGradient, HeadModesAgree) {
  const ModelConfig config = tiny_config(hybrid_layers(), true);
  const auto batches =
      tiny_batches(random_trajectories(config, {9, 23, 2, 14, 31}, 3), {.rows = 2, .row_length = 64}, true);
  const auto run = [&](HeadMode mode, bool known, int threads, double entropy_coef) {
    EngineOptions options = tiny_options();
    options.head_mode = mode;
    options.known_cotangent = known;
    options.grpo.entropy_coef = entropy_coef;
    TinyEngine tiny(config, cpu_f32(threads), options);
    return tiny.gradients(batches);
  };
  for (const double entropy_coef : {0.0, 0.2}) {
    const auto chunked = run(HeadMode::kChunked, false, 2, entropy_coef);
    EXPECT_EQ(chunked, run(HeadMode::kLocal, false, 1, entropy_coef));
    const auto two_pass = run(HeadMode::kFused, false, 2, entropy_coef);
    const auto known = run(HeadMode::kFused, true, 2, entropy_coef);
    EXPECT_LT(relative_difference(chunked, two_pass), 1e-5);
    EXPECT_LT(relative_difference(chunked, known), 1e-5);
    EXPECT_EQ(two_pass, run(HeadMode::kFused, false, 1, entropy_coef));
    EXPECT_EQ(known, run(HeadMode::kFused, true, 1, entropy_coef));
  }
}

// Weights so large that logits might overflow: cotangents are not known while scoring, and that is counted.
TEST(EndToEndGradient, UnboundedLogitsTakeTwoPasses) {
  const ModelConfig config = tiny_config(hybrid_layers());
  const auto batches =
      tiny_batches(random_trajectories(config, {9, 23}, 3), {.rows = 1, .row_length = 64}, true);
  for (const bool huge : {false, true}) {
    TinyEngine tiny(config, cpu_f32(1), tiny_options());
    tiny.engine().device_thread().run([&] {
      ParameterStore& store = tiny.engine().store();
      for (size_t i = 0; huge && i < store.parameters().size(); ++i) {
        const ParameterSpec& spec = *store.parameters()[i].spec;
        if (spec.role != ParameterRole::kLmHead) continue;
        std::vector<float> values(static_cast<size_t>(spec.shape.size()), 0.0F);
        values[0] = 1e36F;  // one word, which is not a target
        store.write_value(i, values);
      }
    });
    const StepResult result = tiny.step(batches);
    EXPECT_EQ(result.head_restarts, huge ? static_cast<int64_t>(batches.size()) : 0);
  }
}

// Packing must not change a value beyond rounding: alone, in one long row, aligned, in rows of other lengths.
TEST(Packing, DoesNotChangeGradients) {
  const ModelConfig config = tiny_config({{MixerKind::kLinearAttention, MlpKind::kMoe},
                                          {MixerKind::kFullAttention, MlpKind::kDense},
                                          {MixerKind::kLinearAttention, MlpKind::kDense}});
  const auto trajectories = random_trajectories(config, {9, 23, 2, 14, 31, 5}, 4);
  const auto run = [&](const TinyPacking& packing) {
    TinyEngine tiny(config, ref_f64(), tiny_options());
    return tiny.gradients(tiny_batches(trajectories, packing, true));
  };
  const auto alone = run({.rows = 1, .row_length = 31, .alignment = 32});
  EXPECT_LT(relative_difference(alone, run({.rows = 1, .row_length = 100, .alignment = 1})), 1e-10);
  EXPECT_LT(relative_difference(alone, run({.rows = 3, .row_length = 64, .alignment = 16})), 1e-10);
}

}  // namespace
}  // namespace lathe::test
