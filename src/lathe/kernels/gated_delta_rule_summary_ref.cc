// The maps of the tokens composed one by one.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lathe/kernels/access.h"
#include "lathe/kernels/gated_delta_rule_summary.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

using Params = GatedDeltaRuleParams;

// One token of one value head.
template <typename T>
struct Token {
  Token(const Params& p, int64_t row, int64_t head, int64_t t, ConstView k, ConstView beta_view, ConstView g)
      : key(elements<T>(k) +
            ((row * p.tokens + t) * p.key_heads + head / (p.value_heads / p.key_heads)) * p.key_dim),
        beta(elements<T>(beta_view)[(row * p.tokens + t) * p.value_heads + head]),
        decay(std::exp(elements<T>(g)[(row * p.tokens + t) * p.value_heads + head])) {}
  const T* key;
  T beta;
  T decay;
};

// state [key_dim, width] <- decay (I - beta k k^T) state + beta k value^T; value absent: 0.
template <typename T>
void step(const Token<T>& token, int64_t key_dim, int64_t width, const T* value, T* state) {
  for (int64_t j = 0; j < width; ++j) {
    T read = 0;
    for (int64_t i = 0; i < key_dim; ++i) read += token.decay * state[i * width + j] * token.key[i];
    const T error = token.beta * ((value == nullptr ? T(0) : value[j]) - read);
    for (int64_t i = 0; i < key_dim; ++i)
      state[i * width + j] = token.decay * state[i * width + j] + token.key[i] * error;
  }
}

template <typename T>
void set_identity(T* matrix, int64_t dim) {
  std::fill(matrix, matrix + dim * dim, T(0));
  for (int64_t i = 0; i < dim; ++i) matrix[i * dim + i] = 1;
}

template <typename T>
void summary_of(const Params& p, ConstView k, ConstView v, ConstView beta, ConstView g,
                ConstView segments_view, ConstView entering_segment, View transition_view, View state_view) {
  T* transition = optional_elements<T>(transition_view);
  T* state = elements<T>(state_view);
  for (int64_t row = 0; row < p.rows; ++row) {
    const int32_t* segments = elements<int32_t>(segments_view) + row * p.tokens;
    for (int64_t head = 0; head < p.value_heads; ++head) {
      std::fill(state, state + p.key_dim * p.value_dim, T(0));
      if (transition != nullptr) set_identity(transition, p.key_dim);
      int32_t active = elements<int32_t>(entering_segment)[row];
      for (int64_t t = 0; t < p.tokens; ++t) {
        if (segments[t] == 0) continue;
        if (segments[t] != active) {
          std::fill(state, state + p.key_dim * p.value_dim, T(0));
          if (transition != nullptr) std::fill(transition, transition + p.key_dim * p.key_dim, T(0));
        }
        active = segments[t];
        const Token<T> token(p, row, head, t, k, beta, g);
        const T* value = elements<T>(v) + ((row * p.tokens + t) * p.value_heads + head) * p.value_dim;
        step(token, p.key_dim, p.value_dim, value, state);
        if (transition != nullptr) step<T>(token, p.key_dim, p.key_dim, nullptr, transition);
      }
      state += p.key_dim * p.value_dim;
      if (transition != nullptr) transition += p.key_dim * p.key_dim;
    }
  }
}

void summary(Queue& /*queue*/, const Params& p, ConstView k, ConstView v, ConstView beta, ConstView g,
             ConstView segments, ConstView entering_segment, View transition, View state) {
  check_gated_delta_rule_summary(p, k, v, beta, g, segments, entering_segment, transition, state);
  with_float_type(k.dtype, [&](auto type) {
    summary_of<decltype(type)>(p, k, v, beta, g, segments, entering_segment, transition, state);
  });
}

// The adjoint of every token before the first one of another segment, in reverse.
template <typename T>
void adjoint_of(const Params& p, ConstView d_o, ConstView q, ConstView k, ConstView beta, ConstView g,
                ConstView segments_view, ConstView entering_segment, View d_state_view) {
  T* d_state = elements<T>(d_state_view);
  for (int64_t row = 0; row < p.rows; ++row) {
    const int32_t* segments = elements<int32_t>(segments_view) + row * p.tokens;
    const int32_t entering = elements<int32_t>(entering_segment)[row];
    int64_t end = 0;
    while (end < p.tokens && (segments[end] == 0 || segments[end] == entering)) ++end;
    for (int64_t head = 0; head < p.value_heads; ++head, d_state += p.key_dim * p.value_dim) {
      std::fill(d_state, d_state + p.key_dim * p.value_dim, T(0));
      for (int64_t t = end; t-- > 0;) {
        if (segments[t] == 0) continue;
        const Token<T> token(p, row, head, t, k, beta, g);
        const T* query = elements<T>(q) + (token.key - elements<T>(k));
        const T* d_out = elements<T>(d_o) + ((row * p.tokens + t) * p.value_heads + head) * p.value_dim;
        for (int64_t j = 0; j < p.value_dim; ++j) {
          T d_error = 0;
          for (int64_t i = 0; i < p.key_dim; ++i) {
            T& d = d_state[i * p.value_dim + j];
            d += query[i] * d_out[j];
            d_error += d * token.key[i];
          }
          for (int64_t i = 0; i < p.key_dim; ++i) {
            T& d = d_state[i * p.value_dim + j];
            d = token.decay * (d - token.beta * token.key[i] * d_error);
          }
        }
      }
    }
  }
}

void adjoint_summary(Queue& /*queue*/, const Params& p, ConstView d_o, ConstView q, ConstView k,
                     ConstView beta, ConstView g, ConstView segments, ConstView entering_segment,
                     View d_state) {
  check_gated_delta_rule_adjoint_summary(p, d_o, q, k, beta, g, segments, entering_segment, d_state);
  with_float_type(k.dtype, [&](auto type) {
    adjoint_of<decltype(type)>(p, d_o, q, k, beta, g, segments, entering_segment, d_state);
  });
}

template <typename T>
void fold_of(const GatedDeltaRuleFoldParams& p, ConstView transitions, ConstView states, View result) {
  const int64_t heads = p.rows * p.value_heads;
  const int64_t dk = p.key_dim;
  const int64_t dv = p.value_dim;
  T* out = elements<T>(result);
  std::fill(out, out + result.size(), T(0));
  std::vector<T> next(static_cast<size_t>(dk * dv));
  for (int64_t i = 0; i < p.count; ++i) {
    const int64_t shard = p.backward ? p.count - 1 - i : i;
    for (int64_t head = 0; head < heads; ++head) {
      const T* add = elements<T>(states) + (shard * heads + head) * dk * dv;
      T* state = out + head * dk * dv;
      next.assign(add, add + dk * dv);
      for (int64_t a = 0; a < dk && i > 0; ++a) {
        for (int64_t b = 0; b < dk; ++b) {
          const T* m = elements<T>(transitions) + (shard * heads + head) * dk * dk;
          const T factor = p.backward ? m[b * dk + a] : m[a * dk + b];
          if (factor == T(0)) continue;
          for (int64_t j = 0; j < dv; ++j)
            next[static_cast<size_t>(a * dv + j)] += factor * state[b * dv + j];
        }
      }
      std::copy(next.begin(), next.end(), state);
    }
  }
}

void fold(Queue& /*queue*/, const GatedDeltaRuleFoldParams& p, ConstView transitions, ConstView states,
          View result) {
  check_gated_delta_rule_fold(p, transitions, states, result);
  with_float_type(result.dtype, [&](auto type) { fold_of<decltype(type)>(p, transitions, states, result); });
}

}  // namespace

void register_gated_delta_rule_summary(KernelTable& table) {
  table.gated_delta_rule_summary = summary;
  table.gated_delta_rule_adjoint_summary = adjoint_summary;
  table.gated_delta_rule_fold = fold;
}

}  // namespace lathe::ref
