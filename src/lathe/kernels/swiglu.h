// SwiGLU on a fused projection: gate_up [rows, 2 width] = [gate | up]; h = silu(gate) up, [rows, width].
// Backward: dgate = dh up silu'(gate), dup = dh silu(gate).
// Weighted form, for experts and the shared expert, whose output row r counts with weight w_r: given dhp = (gradient of
// the unweighted output row) W_down:  dweight = <dhp, h>, dh = w dhp, and h is scaled for the weight gradient:
// weighted_h = w h. The weight of row r is weight[slot_of_row[r]] (weight[r] if slot_of_row is absent); dweight likewise.
// used_rows: i32, absent or the count of rows in its last element; rows from there on are neither read nor written.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

using SwigluForward = void(Queue& queue, ConstView gate_up, ConstView used_rows, View h);
using SwigluBackward = void(Queue& queue, ConstView dh, ConstView gate_up, View dgate_up);
using WeightedSwigluBackward = void(Queue& queue, ConstView dhp, ConstView gate_up, ConstView weight,
                                    ConstView slot_of_row, ConstView used_rows, View dgate_up, View dweight,
                                    View weighted_h);

}  // namespace lathe
