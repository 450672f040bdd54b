// What a rank holds of the model falls as one over the ranks that divide it.
#include <gtest/gtest.h>

#include "engine/plan_engine.h"

namespace lathe::test {
namespace {

// Matrices of the size of a small model; norm scales, which every rank has, are little beside them.
ModelConfig model() {
  ModelConfig config = tiny_config({{MixerKind::kLinearAttention, MlpKind::kMoe},
                                    {MixerKind::kFullAttention, MlpKind::kDense},
                                    {MixerKind::kLinearAttention, MlpKind::kDense},
                                    {MixerKind::kFullAttention, MlpKind::kMoe}});
  config.vocab_size = 4096;
  config.hidden_size = 512;
  config.head_dim = 64;
  config.linear_key_head_dim = 64;
  config.linear_value_head_dim = 64;
  config.intermediate_size = 1536;
  config.num_experts = 16;
  config.moe_intermediate_size = 256;
  config.shared_expert_intermediate_size = 256;
  return config;
}

// Between steps, after a first one of two micro-batches, on a device that holds nothing.
MemoryUse held(const MeshShape& mesh, int rank, DType weights) {
  EngineOptions options = tiny_options();
  options.weight_dtype = weights;
  PlanEngine plan(model(), mesh, rank, options);
  for (int i = 0; i < 2; ++i) static_cast<void>(plan.fwd_bwd(scored_row(64)));
  auto update = plan.engine().update();
  static_cast<void>(plan.engine().result_of(update));
  return plan.held();
}

TEST(MeshMemory, WeightsGradientsAndOptimizerFallAsOneOverTheRanks) {
  for (const DType weights : {DType::kF32, DType::kBF16}) {
    const MemoryUse one = held({}, 0, weights);
    for (const MeshShape& mesh :
         {MeshShape{.fsdp = 2}, MeshShape{.context = 2}, MeshShape{.expert = 2}, MeshShape{.fsdp = 4},
          MeshShape{.fsdp = 2, .context = 2}, MeshShape{.context = 2, .expert = 2}}) {
      MemoryUse all;
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const MemoryUse here = held(mesh, rank, weights);
        for (const MemoryKind kind : {MemoryKind::kWeights, MemoryKind::kGradients, MemoryKind::kOptimizer}) {
          const double share = static_cast<double>(one.of(kind)) / mesh.size();
          EXPECT_NEAR(static_cast<double>(here.of(kind)), share, 0.1 * share)
              << memory_kind_name(kind) << " of rank " << rank << ", fsdp " << mesh.fsdp << " x context "
              << mesh.context << " x expert " << mesh.expert;
          all.bytes[static_cast<size_t>(kind)] += here.of(kind);
        }
      }
      for (const MemoryKind kind : {MemoryKind::kWeights, MemoryKind::kGradients, MemoryKind::kOptimizer})
        EXPECT_GE(all.of(kind), one.of(kind)) << "nobody holds a part of " << memory_kind_name(kind);
    }
  }
}

}  // namespace
}  // namespace lathe::test
