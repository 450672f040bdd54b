#include "lathe/model/context_shard.h"

#include <set>
#include <utility>

#include <gtest/gtest.h>

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
