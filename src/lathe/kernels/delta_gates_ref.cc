#include <cmath>

#include "lathe/kernels/access.h"
#include "lathe/kernels/delta_gates.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

using Params = DeltaGatesParams;

template <typename T>
T sigmoid(T x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

template <typename T>
T softplus(T x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

constexpr double kEpsilon = 1e-6;

// One head of one token: y = x / sqrt(|x|^2 + eps) * scale.
template <typename T>
void normalise(int64_t width, const T* x, T scale, T* y) {
  T squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const T rho = 1 / std::sqrt(squares + static_cast<T>(kEpsilon));
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * rho * scale;
}

template <typename T>
void normalise_backward(int64_t width, const T* x, T scale, const T* dy, T* dx) {
  T squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const T rho = 1 / std::sqrt(squares + static_cast<T>(kEpsilon));
  T along = 0;  // <dy, y>
  for (int64_t i = 0; i < width; ++i) along += dy[i] * scale * x[i] * rho;
  for (int64_t i = 0; i < width; ++i) dx[i] = rho * (dy[i] * scale - x[i] * rho * along);
}

template <typename T>
void zero(T* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = 0;
}

template <typename T>
void forward_of(const Params& p, const T* mixed, const T* ba, const T* a_log, const T* dt_bias,
                const int32_t* segments, T* q, T* k, T* v, T* beta, T* g) {
  const int64_t keys = p.key_heads * p.key_dim;
  const int64_t values = p.value_heads * p.value_dim;
  const T q_scale = 1 / std::sqrt(static_cast<T>(p.key_dim));
  for (int64_t t = 0; t < p.tokens; ++t) {
    if (segments[t] == 0) {
      zero(q + t * keys, keys);
      zero(k + t * keys, keys);
      zero(v + t * values, values);
      zero(beta + t * p.value_heads, p.value_heads);
      zero(g + t * p.value_heads, p.value_heads);
      continue;
    }
    const T* m = mixed + t * (2 * keys + values);
    for (int64_t h = 0; h < p.key_heads; ++h) {
      normalise(p.key_dim, m + h * p.key_dim, q_scale, q + t * keys + h * p.key_dim);
      normalise(p.key_dim, m + keys + h * p.key_dim, T{1}, k + t * keys + h * p.key_dim);
    }
    for (int64_t i = 0; i < values; ++i) v[t * values + i] = m[2 * keys + i];
    for (int64_t h = 0; h < p.value_heads; ++h) {
      const T* gates = ba + t * 2 * p.value_heads;
      beta[t * p.value_heads + h] = sigmoid(gates[h]);
      g[t * p.value_heads + h] = -std::exp(a_log[h]) * softplus(gates[p.value_heads + h] + dt_bias[h]);
    }
  }
}

void forward(Queue& /*queue*/, const Params& p, ConstView mixed, ConstView ba, ConstView a_log,
             ConstView dt_bias, ConstView segments, View q, View k, View v, View beta, View g) {
  check_delta_gates_forward(p, mixed, ba, a_log, dt_bias, segments, q, k, v, beta, g);
  const auto run = [&]<typename T>(T /*type*/) {
    forward_of(p, elements<T>(mixed), elements<T>(ba), elements<T>(a_log), elements<T>(dt_bias),
               elements<int32_t>(segments), elements<T>(q), elements<T>(k), elements<T>(v), elements<T>(beta),
               elements<T>(g));
  };
  mixed.dtype == DType::kF64 ? run(0.0) : run(0.0F);
}

template <typename T>
struct Gradients {
  const T* dq;
  const T* dk;
  const T* dv;
  const T* dbeta;
  const T* dg;
  T* dmixed;
  T* dba;
  T* da_log;
  T* ddt_bias;
};

template <typename T>
void backward_of(const Params& p, const T* mixed, const T* ba, const T* a_log, const T* dt_bias,
                 const int32_t* segments, const Gradients<T>& y) {
  const int64_t keys = p.key_heads * p.key_dim;
  const int64_t values = p.value_heads * p.value_dim;
  const T q_scale = 1 / std::sqrt(static_cast<T>(p.key_dim));
  for (int64_t t = 0; t < p.tokens; ++t) {
    const T* m = mixed + t * (2 * keys + values);
    T* dm = y.dmixed + t * (2 * keys + values);
    T* d_gates = y.dba + t * 2 * p.value_heads;
    if (segments[t] == 0) {
      zero(dm, 2 * keys + values);
      zero(d_gates, 2 * p.value_heads);
      continue;
    }
    for (int64_t h = 0; h < p.key_heads; ++h) {
      const int64_t at = h * p.key_dim;
      normalise_backward(p.key_dim, m + at, q_scale, y.dq + t * keys + at, dm + at);
      normalise_backward(p.key_dim, m + keys + at, T{1}, y.dk + t * keys + at, dm + keys + at);
    }
    for (int64_t i = 0; i < values; ++i) dm[2 * keys + i] = y.dv[t * values + i];
    for (int64_t h = 0; h < p.value_heads; ++h) {
      const T* gates = ba + t * 2 * p.value_heads;
      const T beta = sigmoid(gates[h]);
      const T x = gates[p.value_heads + h] + dt_bias[h];
      const T dg = y.dg[t * p.value_heads + h];
      const T da = -std::exp(a_log[h]) * sigmoid(x) * dg;
      d_gates[h] = y.dbeta[t * p.value_heads + h] * beta * (1 - beta);
      d_gates[p.value_heads + h] = da;
      if (y.ddt_bias != nullptr) y.ddt_bias[h] += da;
      if (y.da_log != nullptr) y.da_log[h] += dg * -std::exp(a_log[h]) * softplus(x);
    }
  }
}

void backward(Queue& /*queue*/, const Params& p, ConstView dq, ConstView dk, ConstView dv, ConstView dbeta,
              ConstView dg, ConstView mixed, ConstView ba, ConstView a_log, ConstView dt_bias,
              ConstView segments, View dmixed, View dba, View da_log, View ddt_bias, View scratch) {
  check_delta_gates_backward(p, dq, dk, dv, dbeta, dg, mixed, ba, a_log, dt_bias, segments, dmixed, dba,
                             da_log, ddt_bias, scratch);
  const auto run = [&]<typename T>(T /*type*/) {
    const Gradients<T> gradients{elements<T>(dq),
                                 elements<T>(dk),
                                 elements<T>(dv),
                                 elements<T>(dbeta),
                                 elements<T>(dg),
                                 elements<T>(dmixed),
                                 elements<T>(dba),
                                 optional_elements<T>(da_log),
                                 optional_elements<T>(ddt_bias)};
    backward_of(p, elements<T>(mixed), elements<T>(ba), elements<T>(a_log), elements<T>(dt_bias),
                elements<int32_t>(segments), gradients);
  };
  mixed.dtype == DType::kF64 ? run(0.0) : run(0.0F);
}

}  // namespace

void register_delta_gates(KernelTable& table) {
  table.delta_gates_forward = forward;
  table.delta_gates_backward = backward;
}

}  // namespace lathe::ref
