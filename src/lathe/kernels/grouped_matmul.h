// Grouped matrix product over experts: rows [offsets[e], offsets[e+1]) of a belong to expert e. Rows at and beyond
// offsets[experts] are neither read nor written.
// offsets: i32 [experts + 1], ascending, offsets[0] = 0. a: [rows, k or n]; w: [experts, n, k]; c: [rows, n or k].
//   trans_w:     c[r, :n] = a[r, :k] w[e]^T      (forward, like y = x W^T)
//   not trans_w: c[r, :k] = a[r, :n] w[e]        (gradient of the input)
// Weight gradient: dw[e, :n, :k] += dy_e^T x_e; experts without rows are left as they are. Types as in matmul.h.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct GroupedMatmulParams {
  bool trans_w = true;
  DType compute = DType::kF32;
};
using GroupedMatmul = void(Queue& queue, const GroupedMatmulParams& params, ConstView a, ConstView w,
                           ConstView offsets, View c);
using GroupedMatmulWeightGradient = void(Queue& queue, const GroupedMatmulParams& params, ConstView dy,
                                         ConstView x, ConstView offsets, View dw);

}  // namespace lathe
