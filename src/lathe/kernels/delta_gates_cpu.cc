#include "lathe/kernels/delta_gates.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_math.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

using Params = DeltaGatesParams;
constexpr float kEpsilon = 1e-6F;

inline const float* floats(ConstView view) {
  return reinterpret_cast<const float*>(view.data);
}
inline float* floats(View view) {
  return reinterpret_cast<float*>(view.data);
}

inline void fill_zero(float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = 0.0F;
}
inline void copy(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}
inline float dot(const float* a, const float* b, int64_t count) {
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}
inline float inverse_root(float x) {
  return 1.0F / __builtin_sqrtf(x);
}

// The heads of one token: y = scale x / sqrt(|x|^2 + eps) each.
inline void normalise(int64_t heads, int64_t width, float scale, const float* x, float* y) {
  for (int64_t h = 0; h < heads; ++h, x += width, y += width) {
    const float factor = scale * inverse_root(dot(x, x, width) + kEpsilon);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) y[i] = factor * x[i];
  }
}

// dx = rho (scale dy - xh <scale dy, xh>), xh = rho x.
inline void normalise_backward(int64_t heads, int64_t width, float scale, const float* x, const float* dy,
                               float* dx) {
  for (int64_t h = 0; h < heads; ++h, x += width, dy += width, dx += width) {
    const float rho = inverse_root(dot(x, x, width) + kEpsilon);
    const float factor = scale * rho;
    const float along = factor * rho * rho * dot(dy, x, width);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] = factor * dy[i] - along * x[i];
  }
}

struct Widths {
  explicit Widths(const Params& p)
      : keys(p.key_heads * p.key_dim), values(p.value_heads * p.value_dim), mixed(2 * keys + values) {}
  int64_t keys;
  int64_t values;
  int64_t mixed;
};

void forward(Queue& queue, const Params& p, ConstView mixed, ConstView ba, ConstView a_log, ConstView dt_bias,
             ConstView segments, View q, View k, View v, View beta, View g) {
  check_delta_gates_forward(p, mixed, ba, a_log, dt_bias, segments, q, k, v, beta, g);
  const Widths width(p);
  const int64_t heads = p.value_heads;
  const float q_scale = inverse_root(static_cast<float>(p.key_dim));
  const float* rates = floats(a_log);
  const float* biases = floats(dt_bias);
  const auto* segment = reinterpret_cast<const int32_t*>(segments.data);
  parallel_for(queue, ceil_div(p.tokens, kDeltaGatesTokenBlock), [&](int64_t block) {
    const int64_t end = min_of((block + 1) * kDeltaGatesTokenBlock, p.tokens);
    for (int64_t t = block * kDeltaGatesTokenBlock; t < end; ++t) {
      float* beta_t = floats(beta) + t * heads;
      float* g_t = floats(g) + t * heads;
      if (segment[t] == 0) {
        fill_zero(floats(q) + t * width.keys, width.keys);
        fill_zero(floats(k) + t * width.keys, width.keys);
        fill_zero(floats(v) + t * width.values, width.values);
        fill_zero(beta_t, heads);
        fill_zero(g_t, heads);
        continue;
      }
      const float* m = floats(mixed) + t * width.mixed;
      normalise(p.key_heads, p.key_dim, q_scale, m, floats(q) + t * width.keys);
      normalise(p.key_heads, p.key_dim, 1.0F, m + width.keys, floats(k) + t * width.keys);
      copy(floats(v) + t * width.values, m + 2 * width.keys, width.values);
      const float* b = floats(ba) + t * 2 * heads;
      const float* a = b + heads;
#pragma omp simd
      for (int64_t h = 0; h < heads; ++h) {
        beta_t[h] = sigmoid_f32(b[h]);
        g_t[h] = -exp_f32(rates[h]) * softplus_f32(a[h] + biases[h]);
      }
    }
  });
}

struct Gradients {
  const float* dq;
  const float* dk;
  const float* dv;
  const float* dbeta;
  const float* dg;
  float* dmixed;
  float* dba;
};

struct GateInputs {
  const float* ba;
  const float* a_log;
  const float* dt_bias;
};

// The gates of one token; adds to the sums da_log and ddt_bias of its block.
inline void backward_gates(int64_t heads, int64_t t, const GateInputs& in, const Gradients& y, float* da_log,
                           float* ddt_bias) {
  const float* b = in.ba + t * 2 * heads;
  const float* a = b + heads;
  const float* dbeta = y.dbeta + t * heads;
  const float* dg = y.dg + t * heads;
  float* db = y.dba + t * 2 * heads;
  float* da = db + heads;
#pragma omp simd
  for (int64_t h = 0; h < heads; ++h) {
    const float x = a[h] + in.dt_bias[h];
    const float rate = -exp_f32(in.a_log[h]);
    const float slope = rate * sigmoid_f32(x) * dg[h];
    db[h] = dbeta[h] * sigmoid_f32(b[h]) * sigmoid_f32(-b[h]);
    da[h] = slope;
    ddt_bias[h] += slope;
    da_log[h] += dg[h] * rate * softplus_f32(x);
  }
}

void backward(Queue& queue, const Params& p, ConstView dq, ConstView dk, ConstView dv, ConstView dbeta,
              ConstView dg, ConstView mixed, ConstView ba, ConstView a_log, ConstView dt_bias,
              ConstView segments, View dmixed, View dba, View da_log, View ddt_bias, View scratch) {
  check_delta_gates_backward(p, dq, dk, dv, dbeta, dg, mixed, ba, a_log, dt_bias, segments, dmixed, dba,
                             da_log, ddt_bias, scratch);
  const Widths width(p);
  const int64_t heads = p.value_heads;
  const int64_t blocks = ceil_div(p.tokens, kDeltaGatesTokenBlock);
  const float q_scale = inverse_root(static_cast<float>(p.key_dim));
  const auto* segment = reinterpret_cast<const int32_t*>(segments.data);
  const GateInputs in{floats(ba), floats(a_log), floats(dt_bias)};
  const Gradients y{floats(dq), floats(dk),     floats(dv), floats(dbeta),
                    floats(dg), floats(dmixed), floats(dba)};
  parallel_for(queue, blocks, [&](int64_t block) {
    float* sums = floats(scratch) + block * 2 * heads;
    fill_zero(sums, 2 * heads);
    const int64_t end = min_of((block + 1) * kDeltaGatesTokenBlock, p.tokens);
    for (int64_t t = block * kDeltaGatesTokenBlock; t < end; ++t) {
      float* dm = y.dmixed + t * width.mixed;
      if (segment[t] == 0) {
        fill_zero(dm, width.mixed);
        fill_zero(y.dba + t * 2 * heads, 2 * heads);
        continue;
      }
      const float* m = floats(mixed) + t * width.mixed;
      normalise_backward(p.key_heads, p.key_dim, q_scale, m, y.dq + t * width.keys, dm);
      normalise_backward(p.key_heads, p.key_dim, 1.0F, m + width.keys, y.dk + t * width.keys,
                         dm + width.keys);
      copy(dm + 2 * width.keys, y.dv + t * width.values, width.values);
      backward_gates(heads, t, in, y, sums, sums + heads);
    }
  });
  for (int64_t h = 0; h < heads; ++h) {
    double rate = 0;
    double bias = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      rate += static_cast<double>(floats(scratch)[block * 2 * heads + h]);
      bias += static_cast<double>(floats(scratch)[(block * 2 + 1) * heads + h]);
    }
    if (!da_log.empty()) floats(da_log)[h] += static_cast<float>(rate);
    if (!ddt_bias.empty()) floats(ddt_bias)[h] += static_cast<float>(bias);
  }
}

}  // namespace

void register_delta_gates(KernelTable& table) {
  table.delta_gates_forward = forward;
  table.delta_gates_backward = backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
