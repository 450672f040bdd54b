// The router's gradient over a ring of experts, against differences of the loss.
#include <algorithm>
#include <cmath>
#include <mutex>

#include <gtest/gtest.h>

#include "lathe/core/rng.h"
#include "lathe/kernels/access.h"

#include "support/run_ranks.h"

#include "engine/whole_step.h"

namespace lathe::test {
namespace {

constexpr double kStep = 1e-5;

struct Slope {
  double measured = 0;  // the same on all ranks
  double expected = 0;  // of the elements of all ranks
  double size = 0;      // squares of the gradient
};

// Moves the router of one layer along a random direction, on all ranks together.
class RankOfRing {
 public:
  RankOfRing(TinyEngine& tiny, const std::vector<MicroBatch>& batches) : tiny_(tiny), batches_(batches) {
    Engine& engine = tiny_.engine();
    gradients_ = tiny_.gradients(batches_);
    auto update = engine.update();
    static_cast<void>(engine.result_of(update));
  }

  [[nodiscard]] Slope along(size_t parameter, uint64_t seed) {
    const Parameter& p = tiny_.engine().store().parameters()[parameter];
    const CounterRng rng(seed, parameter);
    std::vector<double> direction(static_cast<size_t>(p.shard.size()));
    Slope out;
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] = rng.normal(static_cast<uint64_t>(p.shard.begin) + i);
      out.expected += direction[i] * gradients_[parameter][i];
      out.size += gradients_[parameter][i] * gradients_[parameter][i];
    }
    out.measured = (numerator(p, direction, kStep) - numerator(p, direction, -kStep)) / (2 * kStep);
    return out;
  }

 private:
  double numerator(const Parameter& p, const std::vector<double>& direction, double amount) {
    auto* x = elements<double>(p.master.view());
    const std::vector<double> before(x, x + direction.size());
    for (size_t i = 0; i < direction.size(); ++i) x[i] += amount * direction[i];
    const StepResult result = tiny_.step(batches_);
    std::copy(before.begin(), before.end(), x);
    return result.loss * result.denominator;
  }

  TinyEngine& tiny_;
  const std::vector<MicroBatch>& batches_;
  std::vector<std::vector<double>> gradients_;
};

std::map<std::string, Slope> slopes_on(const MeshShape& mesh, const EngineOptions& options) {
  const ModelConfig config = tiny_config(hybrid_layers());
  const auto batches_of = some_batches(config);
  std::map<std::string, Slope> out;
  std::mutex mutex;
  run_ranks_of(mesh, [&](ThreadWorld& world, int rank) {
    const auto make = [&](DeviceMemory& memory) { return world.communicator(rank, memory); };
    TinyEngine tiny(config, ref_f64(), options, 7, make);
    tiny.engine().keep_last_layers(config.num_layers());
    const std::vector<MicroBatch> batches =
        batches_of({.index = mesh.index(rank, kAxesRows),
                    .count = mesh.size(kAxesRows),
                    .length_multiple = row_multiple(mesh.context, options.token_chunks)});
    RankOfRing ring(tiny, batches);
    const auto& parameters = tiny.engine().store().parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].spec->role != ParameterRole::kRouter) continue;
      for (const uint64_t seed : {3, 4}) {
        const Slope here = ring.along(p, seed);
        const std::lock_guard lock(mutex);
        Slope& all = out[fmt::format("{}, direction {}", parameters[p].spec->name(), seed)];
        all.measured = here.measured;
        all.expected += here.expected;
        all.size += here.size;
      }
    }
  });
  return out;
}

TEST(RouterGradient, OverTheRingEqualsDifferences) {
  EngineOptions options = tiny_options();
  options.optimizer.learning_rate = 0;
  options.optimizer.max_grad_norm = 0;
  for (const bool pipeline : {false, true}) {
    options.token_chunks = pipeline ? 2 : 1;
    options.chunk_pipeline = pipeline;
    const auto slopes = slopes_on({.context = 2, .expert = 2}, options);
    EXPECT_EQ(slopes.size(), 4u);
    for (const auto& [name, slope] : slopes) {
      EXPECT_GT(std::sqrt(slope.size), 1e-3) << name;
      EXPECT_NEAR(slope.measured, slope.expected, 1e-6 * std::sqrt(slope.size)) << name;
    }
  }
}

}  // namespace
}  // namespace lathe::test
