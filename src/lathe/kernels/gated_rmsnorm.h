// Gated RMSNorm of the delta rule's output, per head: y = (x rstd) w silu(z), rstd = 1 / sqrt(mean(x^2) + eps).
// Backward: t = dy silu(z); dw += sum t xh (over tokens and heads); dx = rmsnorm backward with t w;
// dz = dy xh w silu'(z); silu'(z) = s (1 + z (1 - s)), s = sigmoid(z).
// x, z, y and gradients: [rows, cols], rows = tokens * heads, cols = value head dim; w: [cols]; rstd: [rows].
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct GatedRmsNormParams {
  double eps = 1e-6;
};
using GatedRmsNormForward = void(Queue& queue, const GatedRmsNormParams& params, ConstView x, ConstView z,
                                 ConstView w, View y, View rstd);
using GatedRmsNormBackward = void(Queue& queue, const GatedRmsNormParams& params, ConstView dy, ConstView x,
                                  ConstView z, ConstView w, ConstView rstd, View dx, View dz, View dw,
                                  View scratch);
inline constexpr int64_t kGatedRmsNormRowBlock = 512;
[[nodiscard]] inline int64_t gated_rmsnorm_backward_scratch(int64_t rows, int64_t cols) {
  return (rows + kGatedRmsNormRowBlock - 1) / kGatedRmsNormRowBlock * cols;
}

}  // namespace lathe
