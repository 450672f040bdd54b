#include <cmath>
#include <vector>

#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/qk_norm_rope.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

// Angles are taken in f64 for both types: a position in the thousands leaves f32 few digits of the angle.
double angle_of(const QkNormRopeParams& params, int32_t position, int64_t m) {
  return position *
         std::pow(params.theta, -2.0 * static_cast<double>(m) / static_cast<double>(params.rotary_dim));
}

// One projection: queries or keys. `stride`: elements from one head to the next in x.
template <typename T>
void forward(const QkNormRopeParams& params, int64_t tokens, int64_t heads, int64_t stride,
             const int32_t* positions, const T* x, const T* w, T* y, T* rstd) {
  const int64_t dim = params.head_dim;
  const int64_t half = params.rotary_dim / 2;
  std::vector<T> normed(static_cast<size_t>(dim));
  for (int64_t row = 0; row < tokens * heads; ++row) {
    const T* in = x + row * stride;
    T* out = y + row * dim;
    T factor = 1;
    if (params.has_norm) {
      T sum = 0;
      for (int64_t c = 0; c < dim; ++c) sum += in[c] * in[c];
      factor = T(1) / std::sqrt(sum / T(dim) + T(params.norm_eps));
      rstd[row] = factor;
    }
    T* n = normed.data();
    for (int64_t c = 0; c < dim; ++c) {
      n[c] = params.has_norm ? in[c] * factor * (T(params.norm_offset) + w[c]) : in[c];
    }
    for (int64_t m = 0; m < half; ++m) {
      const double angle = angle_of(params, positions[row / heads], m);
      const T cosine = static_cast<T>(std::cos(angle));
      const T sine = static_cast<T>(std::sin(angle));
      out[m] = n[m] * cosine - n[m + half] * sine;
      out[m + half] = n[m + half] * cosine + n[m] * sine;
    }
    for (int64_t c = 2 * half; c < dim; ++c) out[c] = n[c];
  }
}

template <typename T>
void backward(const QkNormRopeParams& params, int64_t tokens, int64_t heads, int64_t stride,
              const int32_t* positions, const T* dy, const T* x, const T* w, const T* rstd, T* dx, T* dw) {
  const int64_t dim = params.head_dim;
  const int64_t half = params.rotary_dim / 2;
  std::vector<T> unrotated(static_cast<size_t>(dim));
  for (int64_t row = 0; row < tokens * heads; ++row) {
    const T* grad = dy + row * dim;
    const T* in = x + row * stride;
    T* out = dx + row * stride;
    T* dn = unrotated.data();
    for (int64_t m = 0; m < half; ++m) {
      const double angle = angle_of(params, positions[row / heads], m);
      const T cosine = static_cast<T>(std::cos(angle));
      const T sine = static_cast<T>(std::sin(angle));
      dn[m] = grad[m] * cosine + grad[m + half] * sine;
      dn[m + half] = grad[m + half] * cosine - grad[m] * sine;
    }
    for (int64_t c = 2 * half; c < dim; ++c) dn[c] = grad[c];
    if (!params.has_norm) {
      for (int64_t c = 0; c < dim; ++c) out[c] = dn[c];
      continue;
    }
    T sum = 0;
    for (int64_t c = 0; c < dim; ++c) sum += dn[c] * (T(params.norm_offset) + w[c]) * in[c] * rstd[row];
    for (int64_t c = 0; c < dim; ++c) {
      const T xh = in[c] * rstd[row];
      if (dw != nullptr) dw[c] += dn[c] * xh;
      out[c] = rstd[row] * (dn[c] * (T(params.norm_offset) + w[c]) - xh * (sum / T(dim)));
    }
  }
}

int64_t query_width(const QkNormRopeParams& params) {
  return params.has_gate ? 2 * params.head_dim : params.head_dim;
}

void qk_norm_rope_forward(Queue& /*queue*/, const QkNormRopeParams& params, ConstView q_proj,
                          ConstView k_proj, ConstView positions, ConstView q_norm, ConstView k_norm, View q,
                          View k, View q_rstd, View k_rstd) {
  const int64_t tokens = positions.dim(0);
  const int64_t q_heads = q.dim(1);
  const int64_t kv_heads = k.dim(1);
  check_shape("qk_norm_rope_forward", "q_proj", q_proj, Shape{tokens, q_heads, query_width(params)});
  check_shape("qk_norm_rope_forward", "k_proj", k_proj, Shape{tokens, kv_heads, params.head_dim});
  check_shape("qk_norm_rope_forward", "q", q, Shape{tokens, q_heads, params.head_dim});
  check_shape("qk_norm_rope_forward", "k", k, Shape{tokens, kv_heads, params.head_dim});
  with_float_type(q_proj.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* position = elements<int32_t>(positions);
    forward<T>(params, tokens, q_heads, query_width(params), position, elements<T>(q_proj),
               optional_elements<T>(q_norm), elements<T>(q), optional_elements<T>(q_rstd));
    forward<T>(params, tokens, kv_heads, params.head_dim, position, elements<T>(k_proj),
               optional_elements<T>(k_norm), elements<T>(k), optional_elements<T>(k_rstd));
  });
}

void qk_norm_rope_backward(Queue& /*queue*/, const QkNormRopeParams& params, ConstView dq, ConstView dk,
                           ConstView q_proj, ConstView k_proj, ConstView positions, ConstView q_norm,
                           ConstView k_norm, ConstView q_rstd, ConstView k_rstd, View dq_proj, View dk_proj,
                           View dq_norm, View dk_norm, View /*scratch*/) {
  const int64_t tokens = positions.dim(0);
  const int64_t q_heads = dq.dim(1);
  const int64_t kv_heads = dk.dim(1);
  check_shape("qk_norm_rope_backward", "q_proj", q_proj, Shape{tokens, q_heads, query_width(params)});
  check_shape("qk_norm_rope_backward", "k_proj", k_proj, Shape{tokens, kv_heads, params.head_dim});
  check_shape("qk_norm_rope_backward", "dq_proj", dq_proj, q_proj.shape);
  check_shape("qk_norm_rope_backward", "dk_proj", dk_proj, k_proj.shape);
  with_float_type(dq.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* position = elements<int32_t>(positions);
    backward<T>(params, tokens, q_heads, query_width(params), position, elements<T>(dq), elements<T>(q_proj),
                optional_elements<T>(q_norm), optional_elements<T>(q_rstd), elements<T>(dq_proj),
                optional_elements<T>(dq_norm));
    backward<T>(params, tokens, kv_heads, params.head_dim, position, elements<T>(dk), elements<T>(k_proj),
                optional_elements<T>(k_norm), optional_elements<T>(k_rstd), elements<T>(dk_proj),
                optional_elements<T>(dk_norm));
  });
}

}  // namespace

void register_qk_norm_rope(KernelTable& table) {
  table.qk_norm_rope_forward = qk_norm_rope_forward;
  table.qk_norm_rope_backward = qk_norm_rope_backward;
}

}  // namespace lathe::ref
