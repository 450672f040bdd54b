// What of the exchanges is exposed, on the plan device with a virtual clock: every kernel takes one second, a byte as long
// as a case says.
#include <gtest/gtest.h>

#include "engine/plan_engine.h"

namespace lathe::test {
namespace {

struct OverlapCase {
  MeshShape mesh;
  ModelConfig config;
  int64_t row_length = 64;
  EngineOptions options = tiny_options();
  double seconds_per_byte = 0;
};

struct Timeline {
  double seconds = 0;
  std::vector<LedgerEntry> entries;
};

// A forward alone, or with its backward.
enum class Pass : uint8_t { kForward, kBoth };

Timeline run(const OverlapCase& c, Pass pass) {
  PlanEngine plan(c.config, c.mesh, 0, c.options, c.seconds_per_byte);
  const MicroBatch batch = scored_row(c.row_length);
  const double seconds = pass == Pass::kForward ? plan.score(batch) : plan.fwd_bwd(batch);
  return {seconds, plan.exchanged()};
}

// Of the time that these exchanges take alone on the link; above 1 where they stand behind others.
struct Share {
  double exposed = 0;
  double transfer = 0;
  [[nodiscard]] double value() const { return exposed / transfer; }
};

template <typename Counts>
Share share_of(const OverlapCase& c, const Timeline& timeline, const Counts& counts) {
  Share out;
  for (const LedgerEntry& entry : timeline.entries) {
    if (!counts(entry)) continue;
    out.exposed += entry.exposed_s;
    out.transfer += c.seconds_per_byte * static_cast<double>(entry.wire_bytes);
  }
  return out;
}

bool of_layer(const LedgerEntry& entry) {
  return entry.tensor.find("model.layers.") == 0 && entry.kind == CollectiveKind::kAllGather;
}

// One layer's gathers take 0.8 of its forward.
OverlapCase weights_case(MixerKind mixer) {
  constexpr size_t kLayers = 12;
  OverlapCase c{.mesh = {.fsdp = 4}, .config = {}};
  const auto model = [&](size_t layers) {
    return tiny_config(std::vector<LayerKind>(layers, {mixer, MlpKind::kDense}));
  };
  c.config = model(kLayers + 1);
  const double more = run(c, Pass::kForward).seconds;
  c.config = model(kLayers);
  const Timeline timeline = run(c, Pass::kForward);
  const double layer = more - timeline.seconds;
  int64_t bytes = 0;
  for (const LedgerEntry& entry : timeline.entries) bytes += of_layer(entry) ? entry.wire_bytes : 0;
  c.seconds_per_byte = 0.8 * layer * kLayers / static_cast<double>(bytes);
  return c;
}

TEST(Overlap, TheNextLayersWeightsTravelWhileALayerComputes) {
  for (const MixerKind mixer : {MixerKind::kFullAttention, MixerKind::kLinearAttention}) {
    OverlapCase c = weights_case(mixer);
    const double ahead = share_of(c, run(c, Pass::kBoth), of_layer).value();
    EXPECT_LT(ahead, 0.2);
    EXPECT_LT(share_of(c, run(c, Pass::kForward), of_layer).value(), 0.2);
    // A layer on its own still hides part of it, as each matrix is waited for at its first use; in backward the reductions of
    // the layer before go first.
    c.options.prefetch_layers = false;
    const double alone = share_of(c, run(c, Pass::kBoth), of_layer).value();
    EXPECT_GT(alone, 0.95);
    EXPECT_LT(alone, 1.1);
    EXPECT_GT(share_of(c, run(c, Pass::kForward), of_layer).value(), 0.3);
  }
}

// A chunk's exchanges take 0.8 of its kernels, in forward.
OverlapCase chunks_case(int64_t chunks) {
  OverlapCase c{.mesh = {.expert = 4}, .config = tiny_config({{MixerKind::kFullAttention, MlpKind::kMoe}})};
  c.row_length = 8192;
  c.options.token_chunks = 2 * chunks;
  const double more = run(c, Pass::kForward).seconds;
  c.options.token_chunks = chunks;
  const Timeline timeline = run(c, Pass::kForward);
  int64_t bytes = 0;
  for (const LedgerEntry& entry : timeline.entries)
    bytes += entry.tensor.find("moe.") == 0 ? entry.wire_bytes : 0;
  c.seconds_per_byte = 0.8 * (more - timeline.seconds) / static_cast<double>(bytes);
  return c;
}

TEST(Overlap, ChunksTravelWhileOthersCompute) {
  constexpr int64_t kChunks = 4;
  OverlapCase c = chunks_case(kChunks);
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    const auto counts = [&](const LedgerEntry& entry) {
      return entry.tensor.find("moe.") == 0 && entry.phase == phase;
    };
    c.options.chunk_pipeline = true;
    const double ahead = share_of(c, run(c, Pass::kBoth), counts).value();
    c.options.chunk_pipeline = false;
    const double alone = share_of(c, run(c, Pass::kBoth), counts).value();
    EXPECT_LE(ahead, 1.2 / kChunks) << phase_name(phase);
    EXPECT_GT(alone, 0.95) << phase_name(phase);
  }
}

}  // namespace
}  // namespace lathe::test
