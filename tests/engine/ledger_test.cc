// Every exchange of a step, counted, against formulas of the shapes: how often, how many bytes, and nothing else.

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "support/run_ranks.h"

#include "engine/ledger_formulas.h"
#include "engine/plan_engine.h"

namespace lathe::test {
namespace {

// Calls look(entries, the micro-batch of the rank, rank) after a step on every rank.
template <typename Look>
void after_step(const LedgerCase& c, const std::vector<int>& lengths, const Look& look) {
  const ModelConfig config = config_of(c);
  std::vector<TinyTrajectory> trajectories = random_trajectories(config, lengths, 5);
  for (TinyTrajectory& t : trajectories) {  // all but the first token is scored
    t.completion.insert(t.completion.begin(), t.prompt.begin() + 1, t.prompt.end());
    t.prompt.resize(1);
  }
  const int64_t row_length = *std::max_element(lengths.begin(), lengths.end());
  EngineOptions options = tiny_options();
  options.head_mode = c.head;
  options.head_chunk = c.head_chunk;
  options.known_cotangent = c.known;
  options.replicate_sequence = c.replicate;
  options.token_chunks = c.token_chunks;
  options.chunk_pipeline = c.pipeline;
  options.delta_context = c.delta;
  run_ranks_of(c.mesh, [&](ThreadWorld& world, int rank) {
    const RowShare share{.index = c.mesh.index(rank, kAxesRows),
                         .count = c.mesh.size(kAxesRows),
                         .length_multiple = row_multiple(c.mesh.context, c.token_chunks)};
    const auto all = tiny_batches(trajectories, {.rows = 2, .row_length = row_length}, true, share);
    ASSERT_EQ(all.size(), 1u);
    Ledger* ledger = nullptr;
    const auto make = [&](DeviceMemory& memory) {
      auto communicator = world.communicator(rank, memory);
      ledger = communicator->ledger();
      return communicator;
    };
    TinyEngine tiny(config, cpu_f32(1), options, 7, make);
    tiny.engine().keep_last_layers(c.remat ? 0 : config.num_layers());
    static_cast<void>(tiny.step(std::vector<MicroBatch>(static_cast<size_t>(c.micro_batches), all[0])));
    look(ledger->entries(), all[0], rank);
  });
}

void expect_formulas(const LedgerCase& c) {
  after_step(c, {kLengths.begin(), kLengths.end()},
             [&](const std::vector<LedgerEntry>& entries, const MicroBatch& batch, int rank) {
               Book left = expected_book(c, batch, rank);
               for (const LedgerEntry& entry : entries) {
                 const std::string line = line_of(entry.phase, entry.kind, entry.tensor, entry.axes);
                 const auto found = left.find(line);
                 if (found == left.end()) {
                   ADD_FAILURE() << "rank " << rank << " exchanged what no formula names: " << line;
                   continue;
                 }
                 EXPECT_EQ(entry.count, found->second.count) << "rank " << rank << ": " << line;
                 EXPECT_EQ(entry.result_bytes, found->second.result_bytes) << "rank " << rank << ": " << line;
                 EXPECT_EQ(entry.wire_bytes, found->second.wire_bytes) << "rank " << rank << ": " << line;
                 left.erase(found);
               }
               for (const auto& [line, traffic] : left)
                 ADD_FAILURE() << "rank " << rank << " lacks: " << line;
             });
}

struct TableCounts {
  int64_t gathers = 0;
  int64_t reductions = 0;
};

// A row of 64 chunks, all scored: gathers and reductions of lm_head and of the embedding, per micro-batch.
void expect_tables(const MeshShape& mesh, HeadMode mode, TableCounts head) {
  for (const int64_t micro_batches : {1, 2}) {
    const LedgerCase c{.mesh = mesh,
                       .layers = {{MixerKind::kFullAttention, MlpKind::kDense}},
                       .head = mode,
                       .head_chunk = 4,
                       .micro_batches = micro_batches};
    after_step(c, {64 * 4 + 1},
               [&](const std::vector<LedgerEntry>& entries, const MicroBatch& batch, int rank) {
                 EXPECT_EQ(batch.all_scored, 64 * 4);
                 std::map<std::string, TableCounts> seen;
                 for (const LedgerEntry& entry : entries) {
                   if (entry.kind == CollectiveKind::kAllGather) seen[entry.tensor].gathers += entry.count;
                   if (entry.kind == CollectiveKind::kReduceScatter)
                     seen[entry.tensor].reductions += entry.count;
                 }
                 const std::string where =
                     fmt::format("rank {}, {}, {} micro-batches", rank, head_mode_name(mode), micro_batches);
                 const TableCounts& lm_head = seen["lm_head.weight"];
                 EXPECT_EQ(lm_head.gathers, head.gathers * micro_batches) << where;
                 EXPECT_EQ(lm_head.reductions, head.reductions * micro_batches) << where;
                 const TableCounts& embedding = seen["model.embed_tokens.weight"];
                 EXPECT_EQ(embedding.gathers, micro_batches) << where;
                 EXPECT_EQ(embedding.reductions, micro_batches) << where;
               });
  }
}

const std::array<MeshShape, 3>& table_meshes() {
  static const std::array<MeshShape, 3> meshes{MeshShape{.fsdp = 2}, MeshShape{.context = 2},
                                               MeshShape{.fsdp = 2, .context = 2}};
  return meshes;
}

TEST(Ledger, ChunkedGathersTheTableForEveryChunkOfBothPasses) {
  for (const MeshShape& mesh : table_meshes())
    expect_tables(mesh, HeadMode::kChunked, {.gathers = 64 + 64, .reductions = 64});
}

TEST(Ledger, LocalAndFusedGatherTheTableOnce) {
  for (const MeshShape& mesh : table_meshes()) {
    for (const HeadMode mode : {HeadMode::kLocal, HeadMode::kFused})
      expect_tables(mesh, mode, {.gathers = 1, .reductions = 1});
  }
}

// 248320 words of 4096 in bf16 over 256 ranks, a row of 65536 over four of them: tables of 2.0342 GB, gradients of 4.0685.
TEST(Ledger, TablesOfALargeModel) {
  ModelConfig config = tiny_config({{MixerKind::kFullAttention, MlpKind::kDense}});
  config.vocab_size = 248320;
  config.hidden_size = 4096;
  EngineOptions options = tiny_options();
  options.weight_dtype = DType::kBF16;
  options.head_chunk = 1024;
  options.known_cotangent = false;
  for (const HeadMode mode : {HeadMode::kChunked, HeadMode::kLocal, HeadMode::kFused}) {
    options.head_mode = mode;
    PlanEngine plan(config, {.fsdp = 32, .context = 4, .expert = 2}, 133, options);
    static_cast<void>(plan.fwd_bwd(scored_row(65536)));
    TableCounts seen;
    for (const LedgerEntry& entry : plan.exchanged()) {
      if (entry.tensor != "lm_head.weight" && entry.tensor != "model.embed_tokens.weight") continue;
      const bool gather = entry.kind == CollectiveKind::kAllGather;
      (gather ? seen.gathers : seen.reductions) += entry.count;
      EXPECT_EQ(entry.result_bytes, entry.count * (gather ? 2034237440 : 4068474880)) << entry.tensor;
      EXPECT_EQ(entry.wire_bytes, entry.result_bytes / 256 * 255) << entry.tensor;
    }
    const bool chunked = mode == HeadMode::kChunked;
    EXPECT_EQ(seen.gathers, chunked ? 129 : 2) << head_mode_name(mode);
    EXPECT_EQ(seen.reductions, chunked ? 65 : 2) << head_mode_name(mode);
  }
}

TEST(Ledger, BytesOfWeightsAreTheFormulas) {
  for (const bool remat : {false, true}) {
    expect_formulas({.mesh = {.fsdp = 2}, .remat = remat});
    expect_formulas({.mesh = {.data = 2, .fsdp = 2}, .remat = remat, .micro_batches = 2});
  }
  expect_formulas({.mesh = {.fsdp = 2}, .head = HeadMode::kChunked});
}

TEST(Ledger, BytesOfContextAreTheFormulas) {
  for (const bool remat : {false, true}) {
    expect_formulas({.mesh = {.context = 2}, .remat = remat, .micro_batches = 2});
    expect_formulas({.mesh = {.context = 2}, .remat = remat, .delta = DeltaContext::kHeads});
    expect_formulas({.mesh = {.context = 4}, .remat = remat});
    expect_formulas({.mesh = {.context = 2}, .remat = remat, .known = true});
  }
  for (const bool replicate : {false, true}) {
    expect_formulas({.mesh = {.fsdp = 2, .context = 2}, .head = HeadMode::kChunked, .replicate = replicate});
    expect_formulas({.mesh = {.context = 2}, .head = HeadMode::kChunked, .replicate = replicate});
  }
}

TEST(Ledger, BytesOfExpertsAreTheFormulas) {
  for (const bool remat : {false, true}) {
    expect_formulas({.mesh = {.expert = 2}, .remat = remat});
    expect_formulas({.mesh = {.fsdp = 2, .context = 2, .expert = 2}, .remat = remat, .micro_batches = 2});
    for (const bool pipeline : {false, true}) {
      expect_formulas(
          {.mesh = {.context = 2, .expert = 2}, .remat = remat, .token_chunks = 4, .pipeline = pipeline});
    }
  }
}

}  // namespace
}  // namespace lathe::test
