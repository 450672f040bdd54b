// Rows cut into contiguous shards over the context ranks: what a shard's operations need to know of the tokens around it,
// and who computes which part of attention.
//
// Balanced order (dual chunk swap): a row of `size` shards is 2 size half shards; rank r attends for the queries of half
// shards r and 2 size - 1 - r, so early queries, which see few keys, are paired with late ones. Elsewhere ranks keep the
// natural order: rank r holds half shards 2r and 2r + 1.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lathe/kernels/device.h"
#include "lathe/model/decoder.h"

namespace lathe {

// The rank that attends for half shard `half` of 2 * size.
[[nodiscard]] int balanced_owner(int half, int size);
// The half shards a rank attends for: the one of the first half of the row, then the one of the second.
[[nodiscard]] std::array<int, 2> balanced_halves(int rank, int size);

// Index arrays of one shard, from the segments of whole rows.
struct ContextIndices {
  std::vector<int32_t>
      before_segment;  // [rows]: of the last token before the shard that is not padding; 0: none
  std::vector<int32_t>
      tail_segments;  // [rows, taps - 1]: of the tokens right before the shard, 0 before the row
  std::array<std::vector<int32_t>, 2> balanced_segments;  // [rows, shard / 2]: of balanced_halves()
};
// row_segments: [rows, row length], whole rows; the row length is a multiple of 2 * size.
[[nodiscard]] ContextIndices context_indices(std::span<const int32_t> row_segments, int64_t rows,
                                             int64_t taps, int size, int index);

// The same on a device.
struct ContextShard {
  int size = 1;
  int index = 0;
  Tensor row_segments, before_segment, tail_segments;
  std::array<Tensor, 2> balanced_segments;
  // Fills what BatchView says of the context. On one rank its row_segments become its segments.
  void describe(BatchView& batch) const;
};
[[nodiscard]] ContextShard place_context_shard(const Device& device, std::span<const int32_t> row_segments,
                                               int64_t rows, int64_t taps, int size, int index);

}  // namespace lathe
