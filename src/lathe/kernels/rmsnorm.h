// RMSNorm: y = x rstd (offset + w), rstd = 1 / sqrt(mean(x^2) + eps); offset is 1 for the (1 + w) families, else 0.
// Backward: t = dy (offset + w), xh = x rstd, dx = rstd (t - xh mean(t xh)), dw += sum_rows dy xh.
// x, y, dx, dy: [rows, cols]; w, dw: [cols]; rstd: [rows], written by forward. dx is overwritten, dw accumulated (an
// empty dw is not wanted). w is f32 (f64 on ref with f64). Source of the formula: Zhang & Sennrich 2019.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct RmsNormParams {
  double eps = 1e-6;
  double offset = 0;
};
using RmsNormForward = void(Queue& queue, const RmsNormParams& params, ConstView x, ConstView w, View y,
                            View rstd);
using RmsNormBackward = void(Queue& queue, const RmsNormParams& params, ConstView dy, ConstView x,
                             ConstView w, ConstView rstd, View dx, View dw, View scratch);
// dw is summed over blocks of kRmsNormRowBlock rows, then over blocks in order.
inline constexpr int64_t kRmsNormRowBlock = 128;
// Elements of `scratch` (same type as x).
[[nodiscard]] inline int64_t rmsnorm_backward_scratch(int64_t rows, int64_t cols) {
  return (rows + kRmsNormRowBlock - 1) / kRmsNormRowBlock * cols;
}

}  // namespace lathe
