#include "lathe/model/context_shard.h"

#include <algorithm>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "lathe/kernels/attention_tiles.h"

namespace lathe::test {
namespace {

using Pairs = std::set<std::pair<int, int>>;  // sender, receiver

// Where the first (which = 0) and second half of every shard goes.
Pairs permutation(int size, int which) {
  Pairs out;
  for (int rank = 0; rank < size; ++rank) out.emplace(rank, balanced_owner(2 * rank + which, size));
  return out;
}

TEST(ContextBalance, TwoPermutationsOfHalfShards) {
  EXPECT_EQ(permutation(2, 0), (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(permutation(2, 1), (Pairs{{0, 1}, {1, 0}}));
  EXPECT_EQ(permutation(4, 0), (Pairs{{0, 0}, {1, 2}, {2, 3}, {3, 1}}));
  EXPECT_EQ(permutation(4, 1), (Pairs{{0, 1}, {1, 3}, {2, 2}, {3, 0}}));
  EXPECT_EQ(permutation(8, 0), (Pairs{{0, 0}, {1, 2}, {2, 4}, {3, 6}, {4, 7}, {5, 5}, {6, 3}, {7, 1}}));
  EXPECT_EQ(permutation(8, 1), (Pairs{{0, 1}, {1, 3}, {2, 5}, {3, 7}, {4, 6}, {5, 4}, {6, 2}, {7, 0}}));
}

TEST(ContextBalance, EveryHalfHasOneOwner) {
  for (const int size : {1, 2, 3, 4, 8, 16}) {
    std::set<int> seen;
    for (int rank = 0; rank < size; ++rank) {
      for (const int half : balanced_halves(rank, size)) {
        EXPECT_EQ(balanced_owner(half, size), rank) << half << " of " << size;
        seen.insert(half);
      }
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(2 * size));
  }
  EXPECT_EQ(balanced_halves(0, 2), (std::array<int, 2>{0, 3}));
  EXPECT_EQ(balanced_halves(1, 2), (std::array<int, 2>{1, 2}));
}

// Tiles of every rank's balanced queries. One segment of `real` tokens that begins at `begin` of a row of 65536.
std::vector<int64_t> balanced_tiles(int size, int64_t begin, int64_t q_tile, int64_t key_tile, TileRule rule,
                                    int64_t real = 60948) {
  constexpr int64_t kLength = 65536;
  std::vector<int32_t> segments(kLength, 0);
  std::fill(segments.begin() + begin, segments.begin() + begin + real, 1);
  const int64_t half = kLength / (2 * size);
  std::vector<int64_t> out;
  for (int rank = 0; rank < size; ++rank) {
    int64_t& count = out.emplace_back(0);
    for (const int part : balanced_halves(rank, size)) {
      const AttentionRow row{segments.data() + part * half, segments.data(), half, kLength, part * half};
      count += count_attention_tiles(row, q_tile, key_tile, rule);
    }
  }
  return out;
}

using Counts = std::vector<int64_t>;

TEST(ContextBalance, TilesOfALongRowAndItsPadding) {
  constexpr TileRule kRanges = TileRule::kRanges;
  // Padding behind leaves one rank with less; moved to the front by 4096 it takes key tiles from all.
  EXPECT_EQ(balanced_tiles(4, 0, 1024, 4096, kRanges), (Counts{80, 136, 136, 136}));
  EXPECT_EQ(balanced_tiles(4, 4096, 1024, 4096, kRanges), (Counts{125, 120, 120, 120}));
  EXPECT_EQ(balanced_tiles(4, 0, 2048, 2048, kRanges), (Counts{74, 132, 132, 132}));
  EXPECT_EQ(balanced_tiles(4, 4096, 2048, 2048, kRanges), (Counts{122, 116, 116, 116}));
  EXPECT_EQ(balanced_tiles(8, 0, 1024, 4096, kRanges), (Counts{12, 68, 68, 68, 68, 68, 68, 68}));
  EXPECT_EQ(balanced_tiles(8, 4096, 1024, 4096, kRanges), (Counts{65, 60, 60, 60, 60, 60, 60, 60}));
  // Without padding both rules say the same.
  for (const TileRule rule : {kRanges, TileRule::kExact}) {
    EXPECT_EQ(balanced_tiles(4, 0, 1024, 4096, rule, 65536), (Counts{136, 136, 136, 136}));
    EXPECT_EQ(balanced_tiles(4, 0, 2048, 2048, rule, 65536), (Counts{132, 132, 132, 132}));
  }
  // The kernels of the CPU leave out pairs of padding and padding too.
  EXPECT_EQ(balanced_tiles(4, 0, 1024, 4096, TileRule::kExact), (Counts{72, 136, 136, 136}));
  EXPECT_EQ(balanced_tiles(4, 4096, 1024, 4096, TileRule::kExact), (Counts{120, 120, 120, 120}));
}

TEST(ContextIndices, KnowTheTokensBeforeTheShard) {
  // Two rows of 8 over two ranks; the second one has only padding before its second shard.
  const std::vector<int32_t> segments{1, 1, 5, 0, 5, 5, 6, 0, 0, 0, 0, 0, 3, 3, 3, 3};
  const ContextIndices first = context_indices(segments, 2, 4, 2, 0);
  EXPECT_EQ(first.before_segment, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(first.tail_segments, (std::vector<int32_t>{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(first.balanced_segments[0], (std::vector<int32_t>{1, 1, 0, 0}));
  EXPECT_EQ(first.balanced_segments[1], (std::vector<int32_t>{6, 0, 3, 3}));
  const ContextIndices second = context_indices(segments, 2, 6, 2, 1);
  EXPECT_EQ(second.before_segment, (std::vector<int32_t>{5, 0}));
  EXPECT_EQ(second.tail_segments, (std::vector<int32_t>{0, 1, 1, 5, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(second.balanced_segments[0], (std::vector<int32_t>{5, 0, 0, 0}));
  EXPECT_EQ(second.balanced_segments[1], (std::vector<int32_t>{5, 5, 3, 3}));
}

}  // namespace
}  // namespace lathe::test
