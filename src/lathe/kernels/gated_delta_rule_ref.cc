// The recurrence token by token, and its adjoint token by token. Nothing here is shared with the chunked
// form.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lathe/kernels/access.h"
#include "lathe/kernels/gated_delta_rule.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

using Params = GatedDeltaRuleParams;

// What is given of one row and one value head, and the steps of the recurrence on it.
template <typename T>
struct Head {
  Head(const Params& params, int64_t row_index, int64_t value_head, ConstView q_view, ConstView k_view,
       ConstView v_view, ConstView beta_view, ConstView g_view, ConstView segments_view,
       ConstView initial_state, ConstView initial_segment)
      : p(params),
        row(row_index),
        head(value_head),
        key_head(value_head / (params.value_heads / params.key_heads)),
        q(elements<T>(q_view)),
        k(elements<T>(k_view)),
        v(elements<T>(v_view)),
        beta(elements<T>(beta_view)),
        g(elements<T>(g_view)),
        segments(elements<int32_t>(segments_view) + row_index * params.tokens),
        state_size(params.key_dim * params.value_dim) {
    // The carried state is read only if the row goes on with its segment, or has nothing of its own.
    if (initial_state.empty()) return;
    int32_t first = 0;
    for (int64_t t = 0; t < p.tokens && first == 0; ++t) first = segments[t];
    const int32_t carried = elements<int32_t>(initial_segment)[row];
    if (first != 0 && first != carried) return;
    initial = elements<T>(initial_state) + (row * p.value_heads + head) * state_size;
    initial_of = carried;
  }

  [[nodiscard]] int64_t key_at(int64_t t) const {
    return ((row * p.tokens + t) * p.key_heads + key_head) * p.key_dim;
  }
  [[nodiscard]] int64_t value_at(int64_t t) const {
    return ((row * p.tokens + t) * p.value_heads + head) * p.value_dim;
  }
  [[nodiscard]] int64_t gate_at(int64_t t) const { return (row * p.tokens + t) * p.value_heads + head; }
  [[nodiscard]] int64_t chunk_state_at(int64_t chunk) const {
    return ((row * p.chunks() + chunk) * p.value_heads + head) * state_size;
  }
  // Segment of the state after the tokens before `t`; 0 if nothing has been written yet.
  [[nodiscard]] int32_t segment_before(int64_t t) const {
    for (int64_t u = t - 1; u >= 0; --u) {
      if (segments[u] != 0) return segments[u];
    }
    return initial_of;
  }

  // state: of the token's segment on entry (zeros at its start); error: beta (v - S^T k).
  void step(int64_t t, std::vector<T>& state, std::vector<T>& error) const {
    const int64_t dk = p.key_dim;
    const int64_t dv = p.value_dim;
    const T* key = k + key_at(t);
    const T decay = std::exp(g[gate_at(t)]);
    for (T& s : state) s *= decay;
    for (int64_t j = 0; j < dv; ++j) {
      T read = 0;
      for (int64_t i = 0; i < dk; ++i) read += state[static_cast<size_t>(i * dv + j)] * key[i];
      error[static_cast<size_t>(j)] = beta[gate_at(t)] * (v[value_at(t) + j] - read);
    }
    for (int64_t i = 0; i < dk; ++i) {
      for (int64_t j = 0; j < dv; ++j) {
        state[static_cast<size_t>(i * dv + j)] += key[i] * error[static_cast<size_t>(j)];
      }
    }
  }

  Params p;
  int64_t row;
  int64_t head;
  int64_t key_head;
  const T* q;
  const T* k;
  const T* v;
  const T* beta;
  const T* g;
  const int32_t* segments;  // of this row
  int64_t state_size;
  const T* initial = nullptr;  // of this head; nullptr: starts from zeros
  int32_t initial_of = 0;
};

template <typename T>
void forward_head(const Head<T>& x, T* o, T* final_state, T* chunk_states) {
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  std::vector<T> state(static_cast<size_t>(x.state_size), T{0});
  std::vector<T> error(static_cast<size_t>(dv));
  if (x.initial != nullptr) state.assign(x.initial, x.initial + x.state_size);
  int32_t active = x.initial_of;
  for (int64_t t = 0; t < x.p.tokens; ++t) {
    if (chunk_states != nullptr && t % x.p.chunk == 0) {
      std::copy(state.begin(), state.end(), chunk_states + x.chunk_state_at(t / x.p.chunk));
    }
    T* out = o + x.value_at(t);
    for (int64_t j = 0; j < dv; ++j) out[j] = 0;
    if (x.segments[t] == 0) continue;
    if (x.segments[t] != active) state.assign(state.size(), T{0});
    active = x.segments[t];
    x.step(t, state, error);
    const T* query = x.q + x.key_at(t);
    for (int64_t i = 0; i < dk; ++i) {
      for (int64_t j = 0; j < dv; ++j) out[j] += state[static_cast<size_t>(i * dv + j)] * query[i];
    }
  }
  if (final_state == nullptr) return;
  std::copy(state.begin(), state.end(), final_state + (x.row * x.p.value_heads + x.head) * x.state_size);
}

template <typename T>
struct Gradients {
  const T* d_o;
  const T* d_final_state;
  const T* chunk_states;
  T* dq;
  T* dk;
  T* dv;
  T* dbeta;
  T* dg;
  T* d_initial_state;
};

// Adjoint of one token. before: the state the token decays; d_state: gradient of the state after the token on
// entry, of `before` on return.
template <typename T>
void backward_token(const Head<T>& x, int64_t t, const std::vector<T>& before, std::vector<T>& d_state,
                    const Gradients<T>& y) {
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  const auto at = [dv](int64_t i, int64_t j) { return static_cast<size_t>(i * dv + j); };
  const T* query = x.q + x.key_at(t);
  const T* key = x.k + x.key_at(t);
  const T* d_out = y.d_o + x.value_at(t);
  const T decay = std::exp(x.g[x.gate_at(t)]);
  const T beta = x.beta[x.gate_at(t)];
  std::vector<T> after = before;
  std::vector<T> error(static_cast<size_t>(dv));
  x.step(t, after, error);

  // o = S^T q;  S = decay before + k error^T
  std::vector<T> d_error(static_cast<size_t>(dv), T{0});
  for (int64_t i = 0; i < dk; ++i) {
    for (int64_t j = 0; j < dv; ++j) {
      y.dq[x.key_at(t) + i] += after[at(i, j)] * d_out[j];
      d_state[at(i, j)] += query[i] * d_out[j];
      y.dk[x.key_at(t) + i] += d_state[at(i, j)] * error[static_cast<size_t>(j)];
      d_error[static_cast<size_t>(j)] += d_state[at(i, j)] * key[i];
    }
  }
  // error = beta (v - (decay before)^T k)
  T dbeta = 0;
  for (int64_t j = 0; j < dv; ++j) {
    T miss = x.v[x.value_at(t) + j];
    for (int64_t i = 0; i < dk; ++i) miss -= decay * before[at(i, j)] * key[i];
    dbeta += d_error[static_cast<size_t>(j)] * miss;
    const T d_miss = beta * d_error[static_cast<size_t>(j)];
    y.dv[x.value_at(t) + j] = d_miss;
    for (int64_t i = 0; i < dk; ++i) {
      y.dk[x.key_at(t) + i] -= decay * before[at(i, j)] * d_miss;
      d_state[at(i, j)] -= key[i] * d_miss;
    }
  }
  T dg = 0;
  for (size_t i = 0; i < d_state.size(); ++i) {
    d_state[i] *= decay;
    dg += d_state[i] * before[i];
  }
  y.dbeta[x.gate_at(t)] = dbeta;
  y.dg[x.gate_at(t)] = dg;
}

// Tokens of one chunk in reverse; the state before each of them is found by running the chunk forward first.
template <typename T>
void backward_chunk(const Head<T>& x, int64_t chunk, std::vector<T>& d_state, const Gradients<T>& y) {
  const int64_t begin = chunk * x.p.chunk;
  const int64_t end = std::min(begin + x.p.chunk, x.p.tokens);
  const T* entering = y.chunk_states + x.chunk_state_at(chunk);
  std::vector<T> state(entering, entering + x.state_size);
  std::vector<T> error(static_cast<size_t>(x.p.value_dim));
  std::vector<std::vector<T>> before(static_cast<size_t>(end - begin));
  std::vector<bool> starts(before.size(),
                           false);  // the token starts a segment: nothing flows to earlier ones
  int32_t active = x.segment_before(begin);
  for (int64_t t = begin; t < end; ++t) {
    if (x.segments[t] == 0) continue;
    const auto i = static_cast<size_t>(t - begin);
    starts[i] = x.segments[t] != active;
    if (starts[i]) state.assign(state.size(), T{0});
    active = x.segments[t];
    before[i] = state;
    x.step(t, state, error);
  }
  for (int64_t t = end - 1; t >= begin; --t) {
    const auto i = static_cast<size_t>(t - begin);
    if (x.segments[t] == 0) {
      for (int64_t j = 0; j < x.p.value_dim; ++j) y.dv[x.value_at(t) + j] = 0;
      y.dbeta[x.gate_at(t)] = 0;
      y.dg[x.gate_at(t)] = 0;
      continue;
    }
    backward_token(x, t, before[i], d_state, y);
    if (starts[i]) d_state.assign(d_state.size(), T{0});
  }
}

template <typename T>
void backward_head(const Head<T>& x, const Gradients<T>& y) {
  const int64_t offset = (x.row * x.p.value_heads + x.head) * x.state_size;
  std::vector<T> d_state(static_cast<size_t>(x.state_size), T{0});
  if (y.d_final_state != nullptr) {
    d_state.assign(y.d_final_state + offset, y.d_final_state + offset + x.state_size);
  }
  for (int64_t chunk = x.p.chunks() - 1; chunk >= 0; --chunk) backward_chunk(x, chunk, d_state, y);
  if (y.d_initial_state == nullptr) return;
  if (x.initial == nullptr) d_state.assign(d_state.size(), T{0});
  std::copy(d_state.begin(), d_state.end(), y.d_initial_state + offset);
}

template <typename T>
void forward_of(Queue& queue, const Params& p, ConstView q, ConstView k, ConstView v, ConstView beta,
                ConstView g, ConstView segments, ConstView initial_state, ConstView initial_segment, View o,
                View final_state, View chunk_states) {
  parallel_for(queue, p.rows * p.value_heads, [&](int64_t i) {
    const Head<T> head(p, i / p.value_heads, i % p.value_heads, q, k, v, beta, g, segments, initial_state,
                       initial_segment);
    forward_head(head, elements<T>(o), optional_elements<T>(final_state), optional_elements<T>(chunk_states));
  });
}

void forward(Queue& queue, const Params& p, ConstView q, ConstView k, ConstView v, ConstView beta,
             ConstView g, ConstView segments, ConstView initial_state, ConstView initial_segment, View o,
             View final_state, View chunk_states) {
  check_gated_delta_rule_forward(p, q, k, v, beta, g, segments, initial_state, initial_segment, o,
                                 final_state, chunk_states);
  auto* run = q.dtype == DType::kF64 ? &forward_of<double> : &forward_of<float>;
  run(queue, p, q, k, v, beta, g, segments, initial_state, initial_segment, o, final_state, chunk_states);
}

template <typename T>
void backward_of(Queue& queue, const Params& p, ConstView d_o, ConstView d_final_state, ConstView q,
                 ConstView k, ConstView v, ConstView beta, ConstView g, ConstView segments,
                 ConstView initial_state, ConstView initial_segment, ConstView chunk_states, View dq, View dk,
                 View dv, View dbeta, View dg, View d_initial_state) {
  const Gradients<T> gradients{elements<T>(d_o),
                               optional_elements<T>(d_final_state),
                               elements<T>(chunk_states),
                               elements<T>(dq),
                               elements<T>(dk),
                               elements<T>(dv),
                               elements<T>(dbeta),
                               elements<T>(dg),
                               optional_elements<T>(d_initial_state)};
  const int64_t repeat = p.value_heads / p.key_heads;
  parallel_for(queue, p.rows * p.key_heads, [&](int64_t i) {
    const int64_t row = i / p.key_heads;
    const int64_t key_head = i % p.key_heads;
    for (int64_t r = 0; r < repeat; ++r) {
      const Head<T> head(p, row, key_head * repeat + r, q, k, v, beta, g, segments, initial_state,
                         initial_segment);
      if (r == 0) {
        for (int64_t t = 0; t < p.tokens; ++t) {
          for (int64_t j = 0; j < p.key_dim; ++j) {
            gradients.dq[head.key_at(t) + j] = 0;
            gradients.dk[head.key_at(t) + j] = 0;
          }
        }
      }
      backward_head(head, gradients);
    }
  });
}

void backward(Queue& queue, const Params& p, ConstView d_o, ConstView d_final_state, ConstView q, ConstView k,
              ConstView v, ConstView beta, ConstView g, ConstView segments, ConstView initial_state,
              ConstView initial_segment, ConstView chunk_states, View dq, View dk, View dv, View dbeta,
              View dg, View d_initial_state, View scratch) {
  check_gated_delta_rule_backward(p, d_o, d_final_state, q, k, v, beta, g, segments, initial_state,
                                  initial_segment, chunk_states, dq, dk, dv, dbeta, dg, d_initial_state,
                                  scratch);
  auto* run = q.dtype == DType::kF64 ? &backward_of<double> : &backward_of<float>;
  run(queue, p, d_o, d_final_state, q, k, v, beta, g, segments, initial_state, initial_segment, chunk_states,
      dq, dk, dv, dbeta, dg, d_initial_state);
}

}  // namespace

void register_gated_delta_rule(KernelTable& table) {
  table.gated_delta_rule_forward = forward;
  table.gated_delta_rule_backward = backward;
}

}  // namespace lathe::ref
