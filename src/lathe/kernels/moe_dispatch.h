// Ragged sort of (token, slot) pairs by expert, and moving rows there and back. slot s = token * top_k + j.
// moe_sort: expert i32 [tokens, top_k] (-1 = not routed) -> offsets i32 [experts + 1] (exclusive prefix of the counts),
// slot_of_row i32 [tokens * top_k] (first offsets[experts] entries; stable: by expert, then slot), row_of_slot i32
// [tokens * top_k] (-1 where not routed).
// moe_gather: rows[r, :] = x[slot_of_row[r] / top_k, :] for r < offsets[experts]; x: [tokens, dim], rows: [tokens top_k, dim].
// moe_combine: out[t, :] = sum_j weight[t, j] rows[row_of_slot[t, j], :] in order of j (weight absent: 1; slots that are
// not routed: nothing). out: [tokens, dim], overwritten. It is the backward of moe_gather when weight is absent.
// moe_counts copies the tokens per expert to the host (i64 [experts]); a device that computes nothing answers zeros.
#pragma once

#include <span>

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

using MoeSort = void(Queue& queue, int64_t experts, ConstView expert, View offsets, View slot_of_row,
                     View row_of_slot);
using MoeGather = void(Queue& queue, ConstView x, ConstView slot_of_row, ConstView offsets, View rows);
using MoeCombine = void(Queue& queue, ConstView rows, ConstView weight, ConstView row_of_slot, View out);
using MoeCounts = void(Queue& queue, ConstView offsets, std::span<int64_t> counts);

}  // namespace lathe
