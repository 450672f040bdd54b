// Exchanges of a step that are left out, one at a time: the step is another one then.
#include <ostream>

#include <gtest/gtest.h>

#include "engine/whole_step.h"

namespace lathe::test {
namespace {

struct Program {
  HeadMode head = HeadMode::kFused;
  bool known = true;
  bool replicate = true;
  bool pipeline = false;
};

struct Fault {
  const char* name;
  std::vector<MeshShape> meshes;
  DroppedExchange dropped;
  Program program = {};
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) {
  return out << fault.dropped.tensor << " in " << phase_name(fault.dropped.phase);
}

class PlantedFault : public testing::TestWithParam<Fault> {};

TEST_P(PlantedFault, IsNoticed) {
  const Fault& fault = GetParam();
  MeshRun run;
  run.config = tiny_config(hybrid_layers());
  run.batches = some_batches(run.config);
  run.options.head_mode = fault.program.head;
  run.options.known_cotangent = fault.program.known;
  run.options.replicate_sequence = fault.program.replicate;
  run.options.head_chunk = 7;
  const WholeStep one = run_whole_step(run);
  run.options.token_chunks = fault.program.pipeline ? 2 : 1;
  run.options.chunk_pipeline = fault.program.pipeline;
  for (const MeshShape& mesh : fault.meshes) {
    SCOPED_TRACE(fmt::format("fsdp {} x context {} x expert {}", mesh.fsdp, mesh.context, mesh.expert));
    run.mesh = mesh;
    run.dropped = nullptr;
    EXPECT_LT(difference(run_whole_step(run), one), 1e-9) << "nothing was left out";
    run.dropped = &fault.dropped;
    EXPECT_GT(difference(run_whole_step(run), one), 1e-3);
  }
}

constexpr Phase kForward = Phase::kForward;
constexpr Phase kBackward = Phase::kBackward;
constexpr Program kOwnChunks{HeadMode::kChunked, false, false};
constexpr Program kAllChunks{HeadMode::kChunked, false, true};
constexpr Program kLocal{HeadMode::kLocal, false};
constexpr Program kFused{HeadMode::kFused, false};
constexpr Program kKnown{HeadMode::kFused, true};
constexpr Program kPipeline{HeadMode::kFused, true, true, true};

std::vector<MeshShape> shards() {
  return {{.context = 2}, {.context = 4}};
}
std::vector<MeshShape> rings() {
  return {{.context = 2}, {.expert = 2}, {.context = 2, .expert = 2}};
}
std::vector<MeshShape> cut() {
  return {{.fsdp = 2}, {.fsdp = 2, .context = 2}};
}

INSTANTIATE_TEST_SUITE_P(
    OfAStep, PlantedFault,
    testing::Values(Fault{"NoShiftOfTargetsByOwnChunks", shards(), {"head.next_token", kForward}, kOwnChunks},
                    Fault{"NoShiftOfTargetsByAllChunks", shards(), {"head.next_token", kForward}, kAllChunks},
                    Fault{"NoShiftOfTargetsInLocal", shards(), {"head.next_token", kForward}, kLocal},
                    Fault{"NoShiftOfTargetsInFused", shards(), {"head.next_token", kForward}, kFused},
                    Fault{"NoShiftOfTargetsInOnePass", shards(), {"head.next_token", kForward}, kKnown},
                    Fault{"NoScoredTokensOfOtherShards", shards(), {"head.hidden", kForward}, kAllChunks},
                    Fault{"NoScoresOfOtherShards", shards(), {"head.scores", kForward}},
                    Fault{"NoTokensForOtherExperts", rings(), {"moe.tokens", kForward}},
                    Fault{"NoChoicesForOtherExperts", rings(), {"moe.routing", kForward}},
                    Fault{"NoCombineOfExperts", rings(), {"moe.output", kForward}},
                    Fault{"NoCombineOfExpertsInChunks", rings(), {"moe.output", kForward}, kPipeline},
                    Fault{"NoGatherOfOutputGradients", rings(), {"moe.output", kBackward}},
                    Fault{"NoCombineOfTokenGradients", rings(), {"moe.tokens", kBackward}},
                    Fault{"NoCombineOfRoutingGradients", rings(), {"moe.routing", kBackward}},
                    Fault{"NoReductionOfAMatrixGradient", cut(), {"model.embed_tokens.weight", kBackward}},
                    Fault{"NoSumOfASmallGradient", cut(), {"model.norm.weight", Phase::kUpdate}},
                    Fault{"NoGatherOfAMatrix", cut(), {"lm_head.weight", kForward}}),
    [](const auto& fault) { return fault.param.name; });

}  // namespace
}  // namespace lathe::test
