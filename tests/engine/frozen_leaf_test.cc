// A frozen leaf on many ranks: no gradient, nothing computed or exchanged for it, and every other gradient the same bits.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "engine/plan_engine.h"
#include "engine/whole_step.h"

namespace lathe::test {
namespace {

TEST(FrozenLeaf, LeavesTheBitsOfAllOtherGradients) {
  MeshRun run;
  run.config = tiny_config(hybrid_layers());
  run.batches = some_batches(run.config);
  run.device = cpu_f32(1);
  for (const MeshShape& mesh : {MeshShape{.fsdp = 2, .context = 2}, MeshShape{.context = 2, .expert = 2}}) {
    run.mesh = mesh;
    run.options.trainable = {};
    const WholeStep all = run_whole_step(run);
    for (const char* frozen : {"experts\\.\\d+\\.down_proj", "q_proj", "mlp\\.gate\\.", "lm_head"}) {
      run.options.trainable = {fmt::format("^(?!.*{})", frozen)};
      const WholeStep some = run_whole_step(run);
      size_t missing = 0;
      for (const auto& [name, gradient] : all.gradients) {
        const auto found = some.gradients.find(name);
        if (found == some.gradients.end()) {
          ++missing;
          EXPECT_NE(some.values.at(name), all.values.at(name)) << name << " moves when it trains";
        } else {
          EXPECT_TRUE(found->second == gradient) << name << " without " << frozen;
        }
      }
      EXPECT_GE(missing, 1u) << frozen;
      EXPECT_LE(missing, 2u) << frozen;
      EXPECT_LT(some.result.update.grad_norm, all.result.update.grad_norm) << frozen;
    }
  }
}

struct Work {
  double kernels = 0;
  int64_t gathers = 0;
  int64_t reductions = 0;  // of the leaf
};

// Forward and backward of a micro-batch on a device that counts kernels.
Work work_of(const std::string& leaf, bool frozen) {
  EngineOptions options = tiny_options();
  if (frozen) options.trainable = {fmt::format("^(?!.*{})", leaf)};
  PlanEngine plan(tiny_config({{MixerKind::kFullAttention, MlpKind::kDense}}), {.fsdp = 2}, 0, options);
  Work out{plan.fwd_bwd(scored_row(64))};
  for (const LedgerEntry& entry : plan.exchanged()) {
    if (entry.tensor.find(leaf) == std::string::npos) continue;
    out.gathers += entry.kind == CollectiveKind::kAllGather ? entry.count : 0;
    out.reductions += entry.kind == CollectiveKind::kReduceScatter ? entry.count : 0;
  }
  return out;
}

TEST(FrozenLeaf, CostsOneProductAndOneReductionLess) {
  const std::map<std::string, double> kernels{
      {"q_proj", 1},
      {"v_proj", 1},
      {"o_proj", 1},
      {"down_proj", 2}};  // with the activations that nobody else reads
  for (const auto& [leaf, less] : kernels) {
    const Work trained = work_of(leaf, false);
    const Work frozen = work_of(leaf, true);
    EXPECT_EQ(trained.kernels - frozen.kernels, less) << leaf;
    EXPECT_EQ(trained.reductions, 1) << leaf;
    EXPECT_EQ(frozen.reductions, 0) << leaf;
    EXPECT_EQ(frozen.gathers, trained.gathers) << leaf << " is still multiplied with";
  }
}

}  // namespace
}  // namespace lathe::test
