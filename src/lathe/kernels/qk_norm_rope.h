// Query/key RMSNorm (optional) and rotary embedding, the step between the projections and attention.
// q_proj: [tokens, q_heads, q_width], q_width = head_dim, or 2 head_dim when has_gate: the first half of each head is the
// query, the second the output gate (left alone here). k_proj: [tokens, kv_heads, head_dim].
// q: [tokens, q_heads, head_dim]; k: [tokens, kv_heads, head_dim]; positions: i32 [tokens].
// norm (if has_norm): as in rmsnorm.h over head_dim, one weight for all heads; q_rstd [tokens, q_heads], k_rstd
// [tokens, kv_heads] written by forward (absent without norm).
// Rotation of dims m < r = rotary_dim / 2 with m + r (half-split inside the first rotary_dim dims; the rest passes):
// y_m = x_m cos - x_{m+r} sin, y_{m+r} = x_{m+r} cos + x_m sin, angle = position * theta^(-2m / rotary_dim).
// Backward rotates back, then the norm's backward. It overwrites dk_proj and the query half of dq_proj (the gate half is
// the sigmoid gate's), accumulates dq_norm and dk_norm [head_dim] (absent: not wanted).
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct QkNormRopeParams {
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  double theta = 10000;
  bool has_gate = false;
  bool has_norm = false;
  double norm_offset = 0;
  double norm_eps = 1e-6;
};
using QkNormRopeForward = void(Queue& queue, const QkNormRopeParams& params, ConstView q_proj,
                               ConstView k_proj, ConstView positions, ConstView q_norm, ConstView k_norm,
                               View q, View k, View q_rstd, View k_rstd);
using QkNormRopeBackward = void(Queue& queue, const QkNormRopeParams& params, ConstView dq, ConstView dk,
                                ConstView q_proj, ConstView k_proj, ConstView positions, ConstView q_norm,
                                ConstView k_norm, ConstView q_rstd, ConstView k_rstd, View dq_proj,
                                View dk_proj, View dq_norm, View dk_norm, View scratch);
inline constexpr int64_t kQkNormRopeTokenBlock = 128;
[[nodiscard]] inline int64_t qk_norm_rope_backward_scratch(int64_t tokens, int64_t head_dim) {
  return (tokens + kQkNormRopeTokenBlock - 1) / kQkNormRopeTokenBlock * 2 * head_dim;
}

}  // namespace lathe
