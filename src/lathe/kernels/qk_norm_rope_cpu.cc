#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/qk_norm_rope.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_blocks.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

void set_frequencies(const QkNormRopeParams& params, double* frequency) {
  for (int64_t m = 0; m < params.rotary_dim / 2; ++m) {
    frequency[m] =
        __builtin_pow(params.theta, -2.0 * static_cast<double>(m) / static_cast<double>(params.rotary_dim));
  }
}

// The cosines and sines of one token serve all of its heads.
void set_angles(const double* frequency, int64_t half, int32_t position, float* cosine, float* sine) {
  const auto p = static_cast<double>(position);
#pragma omp simd
  for (int64_t m = 0; m < half; ++m) {
    const SinCos value = sincos_f32(p * frequency[m]);
    cosine[m] = value.cosine;
    sine[m] = value.sine;
  }
}

struct Angles {
  int64_t half;
  const float* cosine;
  const float* sine;
};

// y = rotated x; x and y may be the same.
void rotate(const Angles& angles, int64_t dim, const float* x, float* y) {
  const int64_t half = angles.half;
  const float* cosine = angles.cosine;
  const float* sine = angles.sine;
#pragma omp simd
  for (int64_t m = 0; m < half; ++m) {
    const float low = x[m];
    const float high = x[m + half];
    y[m] = low * cosine[m] - high * sine[m];
    y[m + half] = high * cosine[m] + low * sine[m];
  }
#pragma omp simd
  for (int64_t c = 2 * half; c < dim; ++c) y[c] = x[c];
}

void rotate_back(const Angles& angles, int64_t dim, const float* dy, float* dx) {
  const int64_t half = angles.half;
  const float* cosine = angles.cosine;
  const float* sine = angles.sine;
#pragma omp simd
  for (int64_t m = 0; m < half; ++m) {
    const float low = dy[m];
    const float high = dy[m + half];
    dx[m] = low * cosine[m] + high * sine[m];
    dx[m + half] = high * cosine[m] - low * sine[m];
  }
#pragma omp simd
  for (int64_t c = 2 * half; c < dim; ++c) dx[c] = dy[c];
}

// One projection of all tokens: queries or keys. `stride`: elements from one head to the next in x (and dx).
struct Projection {
  int64_t heads;
  int64_t stride;
  const float* x;
  const float* w;
};

void forward_head(const QkNormRopeParams& params, const Angles& angles, const float* x, const float* w,
                  float* y, float* rstd) {
  const int64_t dim = params.head_dim;
  if (!params.has_norm) {
    rotate(angles, dim, x, y);
    return;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < dim; ++c) sum += x[c] * x[c];
  const float factor =
      1.0F / __builtin_sqrtf(sum / static_cast<float>(dim) + static_cast<float>(params.norm_eps));
  const auto offset = static_cast<float>(params.norm_offset);
#pragma omp simd
  for (int64_t c = 0; c < dim; ++c) y[c] = x[c] * factor * (offset + w[c]);
  *rstd = factor;
  rotate(angles, dim, y, y);
}

void forward_token(const QkNormRopeParams& params, const Angles& angles, const Projection& in, int64_t token,
                   float* y, float* rstd) {
  for (int64_t row = token * in.heads; row < (token + 1) * in.heads; ++row) {
    forward_head(params, angles, in.x + row * in.stride, in.w, y + row * params.head_dim,
                 rstd == nullptr ? nullptr : rstd + row);
  }
}

void backward_head(const QkNormRopeParams& params, const Angles& angles, const float* dy, const float* x,
                   const float* w, float rstd, float* dx, float* dw) {
  const int64_t dim = params.head_dim;
  rotate_back(angles, dim, dy, dx);
  if (!params.has_norm) return;
  const auto offset = static_cast<float>(params.norm_offset);
  if (dw != nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < dim; ++c) dw[c] += dx[c] * (x[c] * rstd);
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < dim; ++c) sum += dx[c] * (offset + w[c]) * x[c];
  const float mean = rstd * sum / static_cast<float>(dim);
#pragma omp simd
  for (int64_t c = 0; c < dim; ++c) dx[c] = rstd * (dx[c] * (offset + w[c]) - x[c] * rstd * mean);
}

struct Gradients {
  const float* dy;
  const float* rstd;
  float* dx;
};

void backward_token(const QkNormRopeParams& params, const Angles& angles, const Projection& in,
                    const Gradients& out, int64_t token, float* dw) {
  for (int64_t row = token * in.heads; row < (token + 1) * in.heads; ++row) {
    backward_head(params, angles, out.dy + row * params.head_dim, in.x + row * in.stride, in.w,
                  params.has_norm ? out.rstd[row] : 1.0F, out.dx + row * in.stride, dw);
  }
}

int64_t query_width(const QkNormRopeParams& params) {
  return params.has_gate ? 2 * params.head_dim : params.head_dim;
}

void check_params(const QkNormRopeParams& params) {
  LATHE_CHECK(
      params.head_dim <= kMaxHeadDim && params.rotary_dim <= params.head_dim && params.rotary_dim % 2 == 0,
      "qk_norm_rope: head_dim {}, rotary_dim {}", params.head_dim, params.rotary_dim);
}

void qk_norm_rope_forward(Queue& queue, const QkNormRopeParams& params, ConstView q_proj, ConstView k_proj,
                          ConstView positions, ConstView q_norm, ConstView k_norm, View q, View k,
                          View q_rstd, View k_rstd) {
  const int64_t tokens = positions.dim(0);
  check_params(params);
  check_shape("qk_norm_rope_forward", "q", q, Shape{tokens, q.dim(1), params.head_dim});
  check_shape("qk_norm_rope_forward", "k", k, Shape{tokens, k.dim(1), params.head_dim});
  check_shape("qk_norm_rope_forward", "q_proj", q_proj, Shape{tokens, q.dim(1), query_width(params)});
  check_shape("qk_norm_rope_forward", "k_proj", k_proj, k.shape);
  const Projection queries{q.dim(1), query_width(params), elements<float>(q_proj),
                           optional_elements<float>(q_norm)};
  const Projection keys{k.dim(1), params.head_dim, elements<float>(k_proj), optional_elements<float>(k_norm)};
  const int32_t* position = elements<int32_t>(positions);
  float* q_out = elements<float>(q);
  float* k_out = elements<float>(k);
  float* q_factor = optional_elements<float>(q_rstd);
  float* k_factor = optional_elements<float>(k_rstd);
  const int64_t half = params.rotary_dim / 2;
  double frequency[kMaxHeadDim / 2];
  set_frequencies(params, frequency);
  for_row_blocks(queue, tokens, (queries.heads + keys.heads) * params.head_dim,
                 [&](int64_t begin, int64_t end) {
                   float cosine[kMaxHeadDim / 2];
                   float sine[kMaxHeadDim / 2];
                   for (int64_t t = begin; t < end; ++t) {
                     set_angles(frequency, half, position[t], cosine, sine);
                     forward_token(params, {half, cosine, sine}, queries, t, q_out, q_factor);
                     forward_token(params, {half, cosine, sine}, keys, t, k_out, k_factor);
                   }
                 });
}

// Everything one block of tokens needs; partial weight gradients of a block: [queries | keys], each head_dim
// long.
struct BackwardCall {
  const QkNormRopeParams& params;
  Projection queries;
  Projection keys;
  Gradients query_gradients;
  Gradients key_gradients;
  const int32_t* position;
  const double* frequency;
  bool want_dq_norm;
  bool want_dk_norm;
};

void backward_block(const BackwardCall& call, int64_t begin, int64_t end, float* sums) {
  const int64_t dim = call.params.head_dim;
  const int64_t half = call.params.rotary_dim / 2;
  float cosine[kMaxHeadDim / 2];
  float sine[kMaxHeadDim / 2];
  float* q_sums = call.want_dq_norm ? sums : nullptr;
  float* k_sums = call.want_dk_norm ? sums + dim : nullptr;
  if (sums != nullptr) __builtin_memset(sums, 0, sizeof(float) * static_cast<size_t>(2 * dim));
  for (int64_t t = begin; t < end; ++t) {
    set_angles(call.frequency, half, call.position[t], cosine, sine);
    backward_token(call.params, {half, cosine, sine}, call.queries, call.query_gradients, t, q_sums);
    backward_token(call.params, {half, cosine, sine}, call.keys, call.key_gradients, t, k_sums);
  }
}

void qk_norm_rope_backward(Queue& queue, const QkNormRopeParams& params, ConstView dq, ConstView dk,
                           ConstView q_proj, ConstView k_proj, ConstView positions, ConstView q_norm,
                           ConstView k_norm, ConstView q_rstd, ConstView k_rstd, View dq_proj, View dk_proj,
                           View dq_norm, View dk_norm, View scratch) {
  const int64_t tokens = positions.dim(0);
  const int64_t dim = params.head_dim;
  check_params(params);
  check_shape("qk_norm_rope_backward", "dq", dq, Shape{tokens, dq.dim(1), dim});
  check_shape("qk_norm_rope_backward", "dk", dk, Shape{tokens, dk.dim(1), dim});
  check_shape("qk_norm_rope_backward", "q_proj", q_proj, Shape{tokens, dq.dim(1), query_width(params)});
  check_shape("qk_norm_rope_backward", "k_proj", k_proj, dk.shape);
  check_shape("qk_norm_rope_backward", "dq_proj", dq_proj, q_proj.shape);
  check_shape("qk_norm_rope_backward", "dk_proj", dk_proj, k_proj.shape);
  const bool want_norms = params.has_norm && !(dq_norm.empty() && dk_norm.empty());
  if (want_norms) {
    LATHE_CHECK(scratch.size() >= qk_norm_rope_backward_scratch(tokens, dim),
                "qk_norm_rope_backward: scratch of {}", scratch.size());
  }
  double frequency[kMaxHeadDim / 2];
  set_frequencies(params, frequency);
  const BackwardCall call{
      .params = params,
      .queries = {dq.dim(1), query_width(params), elements<float>(q_proj), optional_elements<float>(q_norm)},
      .keys = {dk.dim(1), dim, elements<float>(k_proj), optional_elements<float>(k_norm)},
      .query_gradients = {elements<float>(dq), optional_elements<float>(q_rstd), elements<float>(dq_proj)},
      .key_gradients = {elements<float>(dk), optional_elements<float>(k_rstd), elements<float>(dk_proj)},
      .position = elements<int32_t>(positions),
      .frequency = frequency,
      .want_dq_norm = want_norms && !dq_norm.empty(),
      .want_dk_norm = want_norms && !dk_norm.empty()};
  float* partials = want_norms ? elements<float>(scratch) : nullptr;
  for_blocks(queue, tokens, kQkNormRopeTokenBlock, [&](int64_t begin, int64_t end) {
    float* sums = partials == nullptr ? nullptr : partials + begin / kQkNormRopeTokenBlock * 2 * dim;
    backward_block(call, begin, end, sums);
  });
  const int64_t blocks = ceil_div(tokens, kQkNormRopeTokenBlock);
  if (call.want_dq_norm) add_partials(queue, partials, blocks, 2 * dim, dim, elements<float>(dq_norm));
  if (call.want_dk_norm) add_partials(queue, partials + dim, blocks, 2 * dim, dim, elements<float>(dk_norm));
}

}  // namespace

void register_qk_norm_rope(KernelTable& table) {
  table.qk_norm_rope_forward = qk_norm_rope_forward;
  table.qk_norm_rope_backward = qk_norm_rope_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
