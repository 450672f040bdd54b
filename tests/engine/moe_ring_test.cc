// Experts over a ring of eight ranks, in chunks: choices that are forced in part, a buffer that overflows, the same bits.
// Memory is poisoned: rows of the buffers that nobody filled would show as NaN.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "support/run_ranks.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

constexpr int64_t kPositions = 64;
constexpr int64_t kExperts = 16;
constexpr int64_t kChosen = 4;

enum class Pattern : uint8_t { kSpread, kHot };

struct RingCase {
  MeshShape mesh;
  int64_t rows = 1;  // of the whole mesh
  int64_t chunks = 1;
  bool pipeline = false;
  double buffer_factor = -1;
  Pattern pattern = Pattern::kSpread;
  bool wide = false;  // 256 wide, experts of 128, weights and products in bf16
};

struct Outcome {
  // By rank and parameter.
  std::vector<std::vector<std::vector<double>>> gradients;
  std::vector<std::vector<int64_t>> begins;  // where a rank's elements begin in the whole parameter
  std::vector<std::string> names;
  double loss = 0;
  double dropped = 0;
};

ModelConfig ring_config(bool wide) {
  ModelConfig config = tiny_config(hybrid_layers());
  if (wide) {
    config.layers = {{MixerKind::kFullAttention, MlpKind::kMoe}};
    config.hidden_size = 256;
    config.moe_intermediate_size = 128;
  }
  config.num_experts = kExperts;
  config.num_experts_per_tok = kChosen;
  return config;
}

// Spread: neighbours choose other experts; every fifth position leaves a slot open and every seventh names an expert
// twice, so that the router decides there. Hot: everybody wants the first ones.
std::vector<int32_t> forced_choices(Pattern pattern, int64_t row, int64_t layer) {
  std::vector<int32_t> out;
  for (int64_t at = 0; at < kPositions; ++at) {
    std::vector<int32_t> ids;
    for (int64_t slot = 0; slot < kChosen; ++slot) {
      const int64_t spread = (5 * (at + row) + 3 * slot + layer) % kExperts;
      ids.push_back(static_cast<int32_t>(pattern == Pattern::kHot ? slot : spread));
    }
    if (pattern == Pattern::kSpread && at % 5 == 0) ids[static_cast<size_t>(at / 5 % kChosen)] = -1;
    if (pattern == Pattern::kSpread && at % 7 == 3) ids[1] = ids[0];
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

MicroBatch batch_of(const ModelConfig& config, const RingCase& c, int rank) {
  const std::vector<int> lengths(static_cast<size_t>(c.rows), static_cast<int>(kPositions));
  const RowShare share{.index = c.mesh.index(rank, kAxesRows), .count = c.mesh.size(kAxesRows)};
  const auto all = tiny_batches(random_trajectories(config, lengths, 5),
                                {.rows = c.rows, .row_length = kPositions}, true, share);
  MicroBatch batch = all.at(0);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    std::vector<int32_t>& forced = batch.forced_experts.emplace_back();
    for (int64_t row = 0; row < batch.rows; ++row) {
      const std::vector<int32_t> more = forced_choices(c.pattern, share.index * batch.rows + row, layer);
      forced.insert(forced.end(), more.begin(), more.end());
    }
  }
  return batch;
}

Outcome run(const RingCase& c) {
  const ModelConfig config = ring_config(c.wide);
  EngineOptions options = tiny_options();
  options.token_chunks = c.chunks;
  options.chunk_pipeline = c.pipeline;
  options.ragged_buffer_factor = c.buffer_factor;
  if (c.wide) options.weight_dtype = options.compute = DType::kBF16;
  Outcome out;
  const auto ranks = static_cast<size_t>(c.mesh.size());
  out.gradients.resize(ranks);
  out.begins.resize(ranks);
  run_ranks_of(c.mesh, [&](ThreadWorld& world, int rank) {
    const auto make = [&](DeviceMemory& memory) { return world.communicator(rank, memory); };
    TinyEngine tiny(config, cpu_f32(1), options, 7, make);
    Engine& engine = tiny.engine();
    const MicroBatch batch = batch_of(config, c, rank);
    engine.fwd_bwd(engine.prepare(batch));
    engine.wait_for_device();
    engine.device_thread().run([&] { engine.store().reduce_replicas(); });
    const auto here = static_cast<size_t>(rank);
    out.gradients[here] = tiny.gradients({});
    for (const Parameter& parameter : engine.store().parameters())
      out.begins[here].push_back(parameter.shard.begin);
    auto update = engine.update();
    const StepResult result = engine.result_of(update);
    if (rank != 0) return;
    for (const Parameter& parameter : engine.store().parameters())
      out.names.push_back(parameter.spec->name());
    out.loss = result.loss;
    out.dropped = result.moe_dropped_frac;
  });
  return out;
}

Outcome run_one(const RingCase& c) {
  return run({.mesh = {}, .rows = c.rows, .pattern = c.pattern, .wide = c.wide});
}

double largest(const std::vector<double>& values) {
  double out = 0;
  for (const double x : values) out = std::max(out, std::abs(x));
  return out;
}

void expect_close(const Outcome& got, const Outcome& one) {
  EXPECT_NEAR(got.loss, one.loss, 1e-5 * std::abs(one.loss));
  for (size_t rank = 0; rank < got.gradients.size(); ++rank) {
    for (size_t p = 0; p < one.names.size(); ++p) {
      const std::vector<double>& want = one.gradients[0][p];
      const std::vector<double>& values = got.gradients[rank][p];
      const double bound = 1e-5 * largest(want);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(values[i], want[static_cast<size_t>(got.begins[rank][p]) + i], bound)
            << "rank " << rank << ": " << one.names[p] << " element " << i;
      }
    }
  }
}

// Of runs on the same mesh with products in bf16; gradients by their relative difference as a whole.
void expect_close_by_rank(const Outcome& got, const Outcome& want) {
  EXPECT_NEAR(got.loss, want.loss, 5e-5 * std::abs(want.loss));
  for (size_t rank = 0; rank < got.gradients.size(); ++rank) {
    for (size_t p = 0; p < want.names.size(); ++p) {
      const std::vector<double>& expected = want.gradients[rank][p];
      double gap = 0;
      double size = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        gap += std::pow(got.gradients[rank][p][i] - expected[i], 2);
        size += std::pow(expected[i], 2);
      }
      EXPECT_LE(std::sqrt(gap), 1e-2 * std::sqrt(size)) << "rank " << rank << ": " << want.names[p];
    }
  }
}

// The meshes of eight ranks, a row of 64 positions for each group of rows, in two and four chunks.
template <typename Check>
void for_shapes(const Check& check) {
  for (const MeshShape& mesh :
       {MeshShape{.context = 4, .expert = 2}, MeshShape{.fsdp = 2, .context = 2, .expert = 2}}) {
    for (const int64_t chunks : {2, 4}) {
      SCOPED_TRACE(fmt::format("fsdp {} x context {} x expert {}, {} chunks", mesh.fsdp, mesh.context,
                               mesh.expert, chunks));
      check(RingCase{.mesh = mesh, .rows = mesh.size(kAxesRows), .chunks = chunks});
    }
  }
}

TEST(MoeRing, WithRoomForAllItEqualsOneRank) {
  for_shapes([](RingCase c) {
    for (const Pattern pattern : {Pattern::kSpread, Pattern::kHot}) {
      c.pattern = pattern;
      const Outcome got = run(c);
      EXPECT_EQ(got.dropped, 0);
      expect_close(got, run_one(c));
    }
  });
}

// Two of the eight ranks have four times their share of the slots, and room for two.
TEST(MoeRing, HotExpertsOverflowABufferOfTwice) {
  for_shapes([](RingCase c) {
    c.pattern = Pattern::kHot;
    const Outcome all = run(c);
    c.buffer_factor = 2;
    const Outcome capped = run(c);
    EXPECT_DOUBLE_EQ(capped.dropped, 0.5);
    EXPECT_GT(std::abs(capped.loss - all.loss), 1e-4 * std::abs(all.loss));
    for (const auto& rank : capped.gradients) {
      for (const auto& gradient : rank) EXPECT_TRUE(std::isfinite(largest(gradient)));
    }
  });
}

TEST(MoeRing, PipelinedAndAgainTheSameBits) {
  for_shapes([](RingCase c) {
    for (const Pattern pattern : {Pattern::kSpread, Pattern::kHot}) {
      c.pattern = pattern;
      c.buffer_factor = pattern == Pattern::kHot ? 2 : -1;
      c.pipeline = false;
      const Outcome plain = run(c);
      EXPECT_EQ(plain.gradients, run(c).gradients);
      c.pipeline = true;
      const Outcome pipelined = run(c);
      EXPECT_EQ(plain.gradients, pipelined.gradients);
      EXPECT_EQ(plain.loss, pipelined.loss);
    }
  });
}

// What a capped run drops, one with room for all in eight chunks, one after the other, has: whatever the chunks, the same to
// rounding. Sums of few rows may come in another order than those of many; where a value on its way into a bf16 product
// is then rounded to its other neighbour, all that follows moves by the rounding of bf16.
TEST(MoeRing, WideInBf16) {
  for (const MeshShape& mesh :
       {MeshShape{.context = 4, .expert = 2}, MeshShape{.fsdp = 2, .context = 2, .expert = 2}}) {
    RingCase c{
        .mesh = mesh, .rows = mesh.size(kAxesRows), .chunks = 8, .pattern = Pattern::kHot, .wide = true};
    const Outcome replay = run(c);
    EXPECT_EQ(replay.dropped, 0);
    c.pattern = Pattern::kSpread;
    const Outcome spread = run(c);
    for (const int64_t chunks : {2, 4}) {
      SCOPED_TRACE(fmt::format("fsdp {}, {} chunks", mesh.fsdp, chunks));
      c.chunks = chunks;
      c.pattern = Pattern::kSpread;
      c.buffer_factor = 2;
      c.pipeline = true;
      const Outcome roomy = run(c);
      EXPECT_EQ(roomy.dropped, 0);
      expect_close_by_rank(roomy, spread);
      c.pattern = Pattern::kHot;
      c.buffer_factor = 2;
      c.pipeline = false;
      const Outcome capped = run(c);
      EXPECT_DOUBLE_EQ(capped.dropped, 0.5);
      EXPECT_GT(std::abs(capped.loss - replay.loss), 1e-4 * std::abs(replay.loss));
      c.pipeline = true;
      const Outcome pipelined = run(c);
      EXPECT_EQ(pipelined.gradients, capped.gradients);
      EXPECT_EQ(pipelined.loss, capped.loss);
      c.buffer_factor = -1;
      expect_close_by_rank(run(c), replay);
    }
  }
}

TEST(MoeRing, TheRoutersGradientIsNotZero) {
  for_shapes([](RingCase c) {
    for (const double factor : {-1., 2.}) {
      c.buffer_factor = factor;
      const Outcome got = run(c);
      int routers = 0;
      for (size_t p = 0; p < got.names.size(); ++p) {
        if (got.names[p].find(".router") == std::string::npos) continue;
        ++routers;
        for (const auto& rank : got.gradients) EXPECT_GT(largest(rank[p]), 1e-6) << got.names[p];
      }
      EXPECT_EQ(routers, 2);
    }
  });
}

}  // namespace
}  // namespace lathe::test
