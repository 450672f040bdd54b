// Which slots an expert's buffer has no room for: by rank, chunk, row and position, as the host counts them.
#include <algorithm>
#include <array>
#include <set>

#include <gtest/gtest.h>

#include "model/sharded_decoder.h"

namespace lathe::test {
namespace {

constexpr int64_t kRows = 2;
constexpr int64_t kLength = 32;
constexpr int64_t kRanks = 2;
constexpr int64_t kShard = kLength / kRanks;
constexpr int64_t kExperts = 4;
constexpr int64_t kChosen = 2;

using Choices = std::vector<std::array<int32_t, kChosen>>;  // by token of the whole rows

ShardedRun run_of(const Choices& choices, int64_t chunks, double factor) {
  ShardedRun run;
  run.config = small_config({{MixerKind::kFullAttention, MlpKind::kMoe}});
  run.config.family = "qwen3_5_moe";
  run.config.num_experts = kExperts;
  run.config.num_experts_per_tok = kChosen;
  run.config.moe_intermediate_size = 6;
  run.config.norm_topk_prob = true;
  run.rows = kRows;
  run.segments.assign(kRows * kLength, 1);
  for (const auto& ids : choices) run.forced.insert(run.forced.end(), ids.begin(), ids.end());
  run.device.name = "ref";
  run.device.float_type = DType::kF64;
  run.device.poison = true;
  run.options.token_chunks = chunks;
  run.options.ragged_buffer_factor = factor;
  run.mesh = {.context = kRanks};
  return run;
}

// The tokens that lose a slot: each rank sorts the slots that choose one of its experts by expert and then in the order they
// are gathered in, rank by rank, row by row, and keeps the first ones.
std::set<int64_t> losing_tokens(const Choices& choices, int64_t chunks, double factor) {
  std::set<int64_t> out;
  const int64_t part = kShard / chunks;
  const auto room = static_cast<size_t>(static_cast<double>(kRows * part * kChosen) * factor);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t owner = 0; owner < kRanks; ++owner) {
      std::vector<std::pair<int32_t, int64_t>> slots;  // expert, token
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t at = 0; at < part; ++at) {
            const int64_t token = row * kLength + rank * kShard + chunk * part + at;
            for (const int32_t expert : choices[static_cast<size_t>(token)]) {
              if (expert / (kExperts / kRanks) == owner) slots.emplace_back(expert, token);
            }
          }
        }
      }
      std::stable_sort(slots.begin(), slots.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (size_t i = room; i < slots.size(); ++i) out.insert(slots[i].second);
    }
  }
  return out;
}

std::set<int64_t> changed_tokens(const HostArray& a, const HostArray& b) {
  std::set<int64_t> out;
  const int64_t width = a.shape[1];
  for (int64_t token = 0; token < a.shape[0]; ++token) {
    for (int64_t i = token * width; i < (token + 1) * width; ++i) {
      if (a[i] != b[i]) out.insert(token);
    }
  }
  return out;
}

void expect_losses(const Choices& choices, int64_t chunks, double factor) {
  SCOPED_TRACE(fmt::format("{} chunks, {} times a balanced load", chunks, factor));
  const HostArray all = run_sharded(run_of(choices, chunks, -1)).at("hidden");
  const HostArray capped = run_sharded(run_of(choices, chunks, factor)).at("hidden");
  EXPECT_EQ(changed_tokens(all, capped), losing_tokens(choices, chunks, factor));
}

// One row wants the first rank's experts, the other the second's: chunks of the same positions of both are balanced.
TEST(ExpertCapacity, ChunksTakeTheSamePositionsOfEveryRow) {
  Choices choices;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t at = 0; at < kLength; ++at) {
      choices.push_back({static_cast<int32_t>(2 * row), static_cast<int32_t>(2 * row + 1)});
    }
  }
  for (const int64_t chunks : {1, 2, 4}) {
    EXPECT_TRUE(losing_tokens(choices, chunks, 1).empty());
    expect_losses(choices, chunks, 1);
  }
}

TEST(ExpertCapacity, TheLastSlotsOfTheHighestExpertsAreDropped) {
  Choices hot(kRows * kLength, {0, 1});
  Choices mixed;
  for (int32_t token = 0; token < kRows * kLength; ++token) {
    const int32_t first = token % 7 == 0 ? 2 : token % 2;
    mixed.push_back({first, token % 4 == 0 ? 3 : (first + 1) % 2});
  }
  for (const int64_t chunks : {1, 2, 4}) {
    for (const double factor : {0.75, 1.25}) {
      for (const Choices& choices : {hot, mixed}) {
        EXPECT_FALSE(losing_tokens(choices, chunks, factor).empty());
        expect_losses(choices, chunks, factor);
      }
    }
  }
}

}  // namespace
}  // namespace lathe::test
