// A layout gives its bits again: run twice, and with other threads per rank.
#include <ostream>

#include <gtest/gtest.h>

#include "engine/whole_step.h"

namespace lathe::test {
namespace {

struct BitsCase {
  const char* name;
  MeshShape mesh;
  HeadMode head = HeadMode::kFused;
  RematPolicy remat = RematPolicy::kNone;
  int64_t token_chunks = 1;
};

std::ostream& operator<<(std::ostream& out, const BitsCase& c) {
  return out << c.name;
}

class MeshBits : public testing::TestWithParam<BitsCase> {};

TEST_P(MeshBits, SameTwiceAndForOneAndTwoThreadsPerRank) {
  const BitsCase& c = GetParam();
  MeshRun run;
  run.config = tiny_config(hybrid_layers());
  run.batches = some_batches(run.config, 6);  // hundreds of tokens per rank: work for two
  run.mesh = c.mesh;
  run.options.head_mode = c.head;
  run.options.head_chunk = 7;
  run.options.remat = c.remat;
  run.options.token_chunks = c.token_chunks;
  run.options.chunk_pipeline = c.token_chunks > 1;
  run.device = cpu_f32(2);
  const WholeStep first = run_whole_step(run);
  for (const int threads : {2, 1}) {
    run.device = cpu_f32(threads);
    const WholeStep again = run_whole_step(run);
    EXPECT_EQ(again.result.loss, first.result.loss) << threads;
    EXPECT_EQ(again.result.update.grad_norm, first.result.update.grad_norm) << threads;
    for (const auto& [name, gradient] : first.gradients)
      EXPECT_TRUE(again.gradients.at(name) == gradient) << name << ", " << threads << " threads";
    for (const auto& [name, value] : first.values)
      EXPECT_TRUE(again.values.at(name) == value) << "value of " << name << ", " << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MeshBits,
    testing::Values(
        BitsCase{"FsdpAndContext", {.fsdp = 2, .context = 2}},
        BitsCase{
            "FsdpAndContextInChunks", {.fsdp = 2, .context = 2}, HeadMode::kLocal, RematPolicy::kFull, 2},
        BitsCase{"FourShards", {.context = 4}, HeadMode::kChunked},
        BitsCase{"ReplicasAndExperts", {.data = 2, .expert = 2}, HeadMode::kFused, RematPolicy::kFull}),
    [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace lathe::test
