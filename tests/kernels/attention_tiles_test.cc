#include "lathe/kernels/attention_tiles.h"

#include <algorithm>
#include <set>
#include <utility>

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

using Ints = std::vector<int32_t>;

AttentionRow row_of(const Ints& segments, int64_t q_offset) {
  const auto tokens = static_cast<int64_t>(segments.size());
  return {segments.data() + q_offset, segments.data(), tokens - q_offset, tokens, q_offset};
}

bool allowed(const AttentionRow& row, int64_t i, int64_t j) {
  return row.q_segments[i] != 0 && row.q_segments[i] == row.kv_segments[j] && j <= row.q_offset + i;
}

// Tiles that hold an allowed pair, by looking at every pair.
int64_t tiles_by_pairs(const AttentionRow& row, int64_t q_tile, int64_t key_tile) {
  std::set<std::pair<int64_t, int64_t>> tiles;
  for (int64_t i = 0; i < row.q_tokens; ++i) {
    for (int64_t j = 0; j < row.kv_tokens; ++j) {
      if (allowed(row, i, j)) tiles.emplace(i / q_tile, j / key_tile);
    }
  }
  return static_cast<int64_t>(tiles.size());
}

TEST(AttentionTiles, ExactlyTheTilesWithAnAllowedPair) {
  for (const int64_t tokens : {1, 20, 97}) {
    for (const SegmentLayout& layout : segment_layouts(tokens)) {
      for (const int64_t q_offset : {int64_t{0}, tokens / 2, tokens - 1}) {
        const AttentionRow row = row_of(layout.segments, q_offset);
        for (const auto& [q_tile, key_tile] :
             {std::pair{1, 1}, std::pair{8, 8}, std::pair{4, 16}, std::pair{16, 5}}) {
          EXPECT_EQ(count_attention_tiles(row, q_tile, key_tile), tiles_by_pairs(row, q_tile, key_tile))
              << layout.name << " of " << tokens << ", offset " << q_offset << ", tiles " << q_tile << " x "
              << key_tile;
        }
      }
    }
  }
}

TEST(AttentionTiles, RunsHoldExactlyTheAllowedPairs) {
  for (const SegmentLayout& layout : segment_layouts(40)) {
    for (const int64_t q_offset : {0, 13}) {
      const AttentionRow row = row_of(layout.segments, q_offset);
      std::set<std::pair<int64_t, int64_t>> by_queries;
      std::set<std::pair<int64_t, int64_t>> by_keys;
      std::set<std::pair<int64_t, int64_t>> wanted;
      const auto add = [&](const AttentionRun& run, std::set<std::pair<int64_t, int64_t>>& pairs) {
        for (int64_t i = run.q_begin; i < run.q_end; ++i) {
          for (int64_t j = run.key_begin; j < run.key_end; ++j) {
            if (j <= q_offset + i) pairs.emplace(i, j);
          }
        }
      };
      for (int64_t at = 0; at < row.q_tokens;) {
        const AttentionRun run = next_query_run(row, at, std::min<int64_t>(at + 16, row.q_tokens));
        add(run, by_queries);
        at = run.q_end;
      }
      for (int64_t at = 0; at < row.kv_tokens;) {
        const AttentionRun run = next_key_run(row, at, std::min<int64_t>(at + 16, row.kv_tokens));
        add(run, by_keys);
        at = run.key_end;
      }
      for (int64_t i = 0; i < row.q_tokens; ++i) {
        for (int64_t j = 0; j < row.kv_tokens; ++j) {
          if (allowed(row, i, j)) wanted.emplace(i, j);
        }
      }
      EXPECT_EQ(by_queries, wanted) << layout.name;
      EXPECT_EQ(by_keys, wanted) << layout.name;
    }
  }
}

TEST(AttentionTiles, RangesAreExactWhereNothingIsPadding) {
  for (const int64_t tokens : {20, 97}) {
    for (const SegmentLayout& layout : segment_layouts(tokens)) {
      Ints filled = layout.segments;
      int32_t segment = 1;  // padding becomes a segment of its own
      for (size_t t = 0; t < filled.size(); ++t) {
        if (t > 0 && layout.segments[t] != layout.segments[t - 1]) ++segment;
        filled[t] = segment;
      }
      for (const int64_t q_offset : {int64_t{0}, tokens / 2}) {
        const AttentionRow row = row_of(filled, q_offset);
        const AttentionRow padded = row_of(layout.segments, q_offset);
        for (const auto& [q_tile, key_tile] : {std::pair{1, 1}, std::pair{8, 8}, std::pair{4, 16}}) {
          EXPECT_EQ(count_attention_tiles(row, q_tile, key_tile, TileRule::kRanges),
                    count_attention_tiles(row, q_tile, key_tile))
              << layout.name;
          EXPECT_GE(count_attention_tiles(padded, q_tile, key_tile, TileRule::kRanges),
                    count_attention_tiles(padded, q_tile, key_tile))
              << layout.name;
        }
      }
    }
  }
}

TEST(AttentionTiles, CountsOfKnownRows) {
  EXPECT_EQ(count_attention_tiles(row_of(Ints(256, 1), 0), 64, 64), 10);
  EXPECT_EQ(count_attention_tiles(row_of(Ints(256, 1), 192), 64, 64), 4);
  EXPECT_EQ(count_attention_tiles(row_of(Ints(256, 0), 0), 64, 64), 0);
  Ints halves(256, 1);
  std::fill(halves.begin() + 128, halves.end(), 2);
  EXPECT_EQ(count_attention_tiles(row_of(halves, 0), 64, 64), 6);
}

}  // namespace
}  // namespace lathe::test
