// The tokens around the ends of shards: the last of each shard, and the first of the next, which the last position of the
// shard before it predicts. By name, in every program of the head.
#include <array>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "support/run_ranks.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

constexpr int64_t kRowLength = 128;
constexpr int64_t kShards = 4;
constexpr int64_t kShard = kRowLength / kShards;

// Segments of a row by their lengths.
const std::vector<std::vector<int>> kRows{
    {128},  // crosses every boundary
    {31, 65,
     32},  // begins on the last token of shard 0, ends on that of shard 2; one begins on the first of shard 3
    {63, 32, 33},  // begin on the last token of shard 1, of shard 2
    {32, 64, 8},   // begin on the first token of shard 1, of shard 3
};

// All tokens but the first of each segment are scored.
MicroBatch boundary_batch(const ModelConfig& config) {
  PackedMicroBatch packed;
  std::vector<Trajectory> trajectories;
  std::vector<int> lengths;
  for (const std::vector<int>& row : kRows) lengths.insert(lengths.end(), row.begin(), row.end());
  for (const TinyTrajectory& tiny : random_trajectories(config, lengths, 11)) {
    std::vector<int32_t> ids = tiny.prompt;
    ids.insert(ids.end(), tiny.completion.begin(), tiny.completion.end());
    Trajectory& t = trajectories.emplace_back();
    t.line = static_cast<int64_t>(trajectories.size());
    t.prompt_ids.assign(ids.begin(), ids.begin() + 1);
    t.completion_ids.assign(ids.begin() + 1, ids.end());
    t.completion_mask.assign(t.completion_ids.size(), 1);
  }
  int64_t item = 0;
  for (const std::vector<int>& row : kRows) {
    PackedRow& to = packed.rows.emplace_back();
    int64_t start = 0;
    for (const int length : row) {
      to.segments.push_back({item++, start});
      start += length;
    }
  }
  return build_micro_batch(packed, trajectories, {}, kRowLength, {});
}

// The scored tokens beside a boundary, by number among all scored ones.
std::map<size_t, std::string> tokens_by_name(const MicroBatch& batch) {
  std::map<size_t, std::string> out;
  for (size_t i = 0; i < batch.hidden_index.size(); ++i) {
    const int64_t row = batch.hidden_index[i] / kRowLength;
    const int64_t token = batch.hidden_index[i] % kRowLength + 1;
    const int64_t shard = token / kShard;
    const bool first = token % kShard == 0;
    const bool last = (token + 1) % kShard == 0 && shard + 1 < kShards;
    if (!first && !last) continue;
    out[i] = fmt::format("row {}, token {}: the {} of shard {}, predicted on shard {}", row, token,
                         first ? "first" : "last", shard, (token - 1) / kShard);
  }
  return out;
}

struct Choice {
  const char* name;
  HeadMode mode;
  bool replicate;
};
constexpr std::array<Choice, 4> kChoices{Choice{"chunked over whole rows", HeadMode::kChunked, true},
                                         Choice{"chunked over own tokens", HeadMode::kChunked, false},
                                         Choice{"local", HeadMode::kLocal, false},
                                         Choice{"fused", HeadMode::kFused, false}};

TokenScores scores_on(const ModelConfig& config, const MeshShape& mesh, const Choice& choice, int asked) {
  EngineOptions options = tiny_options();
  options.head_mode = choice.mode;
  options.replicate_sequence = choice.replicate;
  options.head_chunk = 7;
  TokenScores out;
  run_ranks_of(mesh, [&](ThreadWorld& world, int rank) {
    const auto make = [&](DeviceMemory& memory) { return world.communicator(rank, memory); };
    TinyEngine tiny(config, cpu_f32(1), options, 7, make);
    TokenScores scores = tiny.engine().score(tiny.engine().prepare(boundary_batch(config)));
    if (rank == asked) out = std::move(scores);
  });
  return out;
}

TEST(ShardBoundaries, EveryKindOfTokenIsThere) {
  const auto names = tokens_by_name(boundary_batch(tiny_config(hybrid_layers())));
  std::map<std::string, int> kinds;
  for (const auto& [token, name] : names) ++kinds[name.substr(name.find("the "))];
  EXPECT_EQ(names.size(), 6u + 4u + 4u + 4u);
  for (int64_t shard = 0; shard + 1 < kShards; ++shard) {
    EXPECT_GE(kinds[fmt::format("the last of shard {0}, predicted on shard {0}", shard)], 2);
    EXPECT_GE(kinds[fmt::format("the first of shard {}, predicted on shard {}", shard + 1, shard)], 2);
  }
}

// One rank is the yardstick: log-probs around -3.5, sums of f32 in another order.
TEST(ShardBoundaries, ScoresOfTheTokensBesideThemAreThoseOfOneRank) {
  const ModelConfig config = tiny_config(hybrid_layers());
  const MicroBatch batch = boundary_batch(config);
  for (const Choice& choice : kChoices) {
    const TokenScores one = scores_on(config, {}, choice, 0);
    const TokenScores four = scores_on(config, {.context = kShards}, choice, 2);
    ASSERT_EQ(four.logprobs.size(), one.logprobs.size());
    for (const auto& [token, name] : tokens_by_name(batch)) {
      EXPECT_NEAR(four.logprobs[token], one.logprobs[token], 2e-6) << choice.name << ", log-prob, " << name;
      EXPECT_NEAR(four.entropy[token], one.entropy[token], 2e-6) << choice.name << ", entropy, " << name;
    }
    for (size_t token = 0; token < one.logprobs.size(); ++token)
      EXPECT_NEAR(four.logprobs[token], one.logprobs[token], 2e-6)
          << choice.name << ", scored token " << token;
  }
}

}  // namespace
}  // namespace lathe::test
