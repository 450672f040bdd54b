// The rehearsal against what the same step really allocates.
#include "lathe/engine/rehearsal.h"

#include <map>

#include <gtest/gtest.h>

#include "support/run_ranks.h"
#include "support/temp_folder.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

std::map<std::string, int64_t> bytes_by_name(const std::vector<LiveTensor>& live) {
  std::map<std::string, int64_t> out;
  for (const LiveTensor& tensor : live) out[tensor.name] += tensor.bytes;
  return out;
}

// Four kinds of layer; long rows, so that activations outweigh the optimizer's staging.
ModelConfig model() {
  return tiny_config({{MixerKind::kLinearAttention, MlpKind::kMoe},
                      {MixerKind::kFullAttention, MlpKind::kDense},
                      {MixerKind::kLinearAttention, MlpKind::kDense},
                      {MixerKind::kFullAttention, MlpKind::kMoe}});
}

std::vector<MicroBatch> batches() {
  const auto all = tiny_batches(random_trajectories(model(), {120, 200, 180, 60, 240, 200}, 3),
                                {.rows = 2, .row_length = 256}, true);
  return {all.at(0), all.at(0)};
}

void expect_as_rehearsed(int64_t kept_layers, const EngineOptions& options, const DeviceOptions& device) {
  TinyEngine tiny(model(), device, options);
  tiny.engine().keep_last_layers(kept_layers);
  tiny.engine().device_thread().run([&] { tiny.device().memory->reset_peak(); });
  const RehearsedPeak planned = tiny.engine().rehearse(batches().at(0), kept_layers);
  static_cast<void>(tiny.step(batches()));
  EXPECT_EQ(tiny.device().memory->peak().bytes, planned.use.bytes) << kept_layers << " layers kept";
  EXPECT_EQ(bytes_by_name(tiny.device().memory->live_at_peak()), bytes_by_name(planned.live));
}

TEST(Rehearsal, CountsWhatAStepTakesToTheByteAndByName) {
  for (const int64_t kept : {0, 1, 3, 4}) expect_as_rehearsed(kept, tiny_options(), cpu_f32(2));
}

TEST(Rehearsal, CountsOtherTypesToo) {
  EngineOptions narrow = tiny_options();
  narrow.weight_dtype = DType::kBF16;
  narrow.compute = DType::kBF16;
  expect_as_rehearsed(4, narrow, cpu_f32(1));
  EngineOptions frozen_part = tiny_options();
  frozen_part.trainable = {"layers.1."};
  expect_as_rehearsed(2, frozen_part, cpu_f32(1));
  expect_as_rehearsed(2, tiny_options(), ref_f64());
}

TEST(Rehearsal, NothingOfItsShapeTakesMoreThanTheLargestMicroBatch) {
  const MicroBatch batch = batches().at(0);
  TinyEngine tiny(model(), cpu_f32(1), tiny_options());
  const RehearsedPeak real = tiny.engine().rehearse(batch, 4);
  const RehearsedPeak most = tiny.engine().rehearse(largest_micro_batch(batch.rows, batch.row_length), 4);
  EXPECT_GT(most.use.total(), real.use.total());
}

TEST(Remat, AutoKeepsTheMostLayersThatFitTheBudget) {
  TinyEngine probe(model(), cpu_f32(1), tiny_options());
  const MicroBatch largest = largest_micro_batch(2, 256);
  std::vector<int64_t> needed;
  for (int64_t kept = 0; kept <= 4; ++kept)
    needed.push_back(probe.engine().rehearse(largest, kept).use.total());
  EXPECT_TRUE(std::is_sorted(needed.begin() + 1, needed.end()));
  EXPECT_LT(needed.front(), needed.back());
  const auto kept_with = [&](int64_t budget) {
    EngineOptions options = tiny_options();
    options.remat = RematPolicy::kAuto;
    options.memory_budget = budget;
    TinyEngine tiny(model(), cpu_f32(1), options);
    tiny.engine().plan_remat(2, 256);
    return tiny.engine().kept_layers();
  };
  for (const int64_t budget : needed) {
    for (const int64_t bytes : {budget, budget - 1}) {
      int64_t most = 0;
      for (int64_t kept = 0; kept <= 4; ++kept) {
        if (needed[static_cast<size_t>(kept)] <= bytes) most = kept;
      }
      EXPECT_EQ(kept_with(bytes), most);
    }
  }
}

// All ranks keep what the one with the least room can, and rank 0 logs the numbers of that one.
TEST(Remat, TheRankWithTheLeastRoomDecidesAndIsNamed) {
  const TempFolder folder;
  const std::string log_file = folder / "log.txt";
  int64_t needed = 0;
  run_ranks_of({.fsdp = 2}, [&](ThreadWorld& world, int rank) {
    EngineOptions options = tiny_options();
    options.remat = RematPolicy::kAuto;
    options.memory_budget = rank == 0 ? int64_t{1} << 40 : 4096;
    const auto make = [&](DeviceMemory& memory) { return world.communicator(rank, memory); };
    TinyEngine tiny(model(), cpu_f32(1), options, 7, make);
    if (rank == 0) tiny.log().add_file(log_file);
    tiny.engine().plan_remat(2, 256);
    EXPECT_EQ(tiny.engine().kept_layers(), 0) << rank;
    if (rank == 1) needed = tiny.engine().rehearse(largest_micro_batch(1, 256), 0).use.total();
  });
  const std::string log = bytes_of_file(log_file);
  const std::string need = bytes_text(needed);
  EXPECT_NE(log.find("remat.policy auto: full (needs " + need + " of a budget of 4.0 KiB on rank 1)"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("run.memory_budget leaves 4.0 KiB for training on rank 1, less than the " + need),
            std::string::npos)
      << log;
}

TEST(Remat, SameBitsHoweverManyLayersAreKept) {
  const auto run = [&](int64_t kept) {
    TinyEngine tiny(model(), cpu_f32(2), tiny_options());
    tiny.engine().keep_last_layers(kept);
    for (int i = 0; i < 2; ++i) static_cast<void>(tiny.step(batches()));
    return tiny.values();
  };
  const auto all = run(4);
  for (const int64_t kept : {0, 1, 2, 3}) EXPECT_EQ(all, run(kept)) << kept;
}

}  // namespace
}  // namespace lathe::test
