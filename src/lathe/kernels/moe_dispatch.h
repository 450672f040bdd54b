// Ragged sort of (token, slot) pairs by expert, and moving rows there and back. slot s = token * top_k + j.
// moe_sort looks at a window of experts, those that this rank holds: expert i32 [tokens, top_k] (-1 = not routed; ids outside
// the window are as if not routed) -> offsets i32 [count + 1] (exclusive prefix of the rows kept per expert of the window),
// slot_of_row i32 [capacity] (first offsets[count] entries; stable: by expert, then slot), row_of_slot i32 [tokens * top_k]
// (-1 where there is no row), wanted i32 [1] (may be absent): slots that choose an expert of the window. Only the first
// `capacity` of them in sorted order are kept: rows of the highest experts, and there of the last tokens, are dropped.
// moe_gather: rows[r, :] = x[slot_of_row[r] / top_k, :] for r < offsets[count]; x: [tokens, dim], rows: [capacity, dim].
// moe_combine: out[t, :] = sum_j weight[t, j] rows[row_of_slot[t, j], :] in order of j (weight absent: 1; slots without a
// row: nothing). rows: [capacity, dim]; out: [tokens, dim], overwritten. It is the backward of moe_gather when weight is
// absent. Rows from offsets[count] on are neither written nor read.
// moe_counts copies the rows per expert to the host (i64 [count]), moe_wanted what moe_sort wrote there: more than the
// capacity is an overflow. A device that computes nothing answers zeros.
#pragma once

#include <span>

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct MoeSortParams {
  int64_t experts = 0;  // of the model
  int64_t first = 0;    // window: [first, first + count)
  int64_t count = 0;
};
using MoeSort = void(Queue& queue, const MoeSortParams& params, ConstView expert, View offsets,
                     View slot_of_row, View row_of_slot, View wanted);
using MoeGather = void(Queue& queue, int64_t top_k, ConstView x, ConstView slot_of_row, ConstView offsets,
                       View rows);
using MoeCombine = void(Queue& queue, ConstView rows, ConstView weight, ConstView row_of_slot, View out);
using MoeCounts = void(Queue& queue, ConstView offsets, std::span<int64_t> counts);
using MoeWanted = int64_t(Queue& queue, ConstView wanted);

// Entry checks shared by the implementations.
void check_moe_sort(const MoeSortParams& params, ConstView expert, ConstView offsets, ConstView slot_of_row,
                    ConstView row_of_slot, ConstView wanted);

}  // namespace lathe
