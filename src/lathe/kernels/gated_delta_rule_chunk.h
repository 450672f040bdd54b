// The part of the chunked gated delta rule that forward and backward share: what is given of one row and
// value head, the tiles of one chunk, and the matrices inside it. For gated_delta_rule_cpu.cc and
// gated_delta_rule_summary_cpu.cc.
//
// Tiles hold the tokens of a chunk that are not padding, one after another, so nothing below knows about
// padding or a short last chunk. With i, j over those tokens, `same` = of one segment, and gam the sum of g
// from the segment's first token in the chunk:
//   decay_ij = exp(gam_i - gam_j) for j <= i and same;  enter_i = exp(gam_i) if i is of the entering state's
//   segment; leave_i = exp(gam_last - gam_i) if i is of the last token's segment;  keep = exp(gam_last) if
//   all tokens are of the entering state's segment; each 0 otherwise. L = beta_i <k_i, k_j> decay_ij (j < i);
//   P = <q_i, k_j> decay_ij (j <= i);  X = (I + L)^-1 N = X (beta V - enter beta K S);  O = enter Q S + P N;
//   S <- keep S + (leave K)^T N
#pragma once

#include "lathe/kernels/gated_delta_rule.h"
#include "lathe/kernels/onednn_gemm.h"
#include "lathe/kernels/simd_math.h"
#include "lathe/kernels/unit_lower_inverse.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

using DeltaParams = GatedDeltaRuleParams;

inline const float* floats(ConstView view) {
  return reinterpret_cast<const float*>(view.data);
}
inline float* floats(View view) {
  return reinterpret_cast<float*>(view.data);
}
inline const int32_t* integers(ConstView view) {
  return reinterpret_cast<const int32_t*>(view.data);
}

inline void fill(float* to, int64_t count, float value) {
  for (int64_t i = 0; i < count; ++i) to[i] = value;
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

struct DeltaInputs {
  const float* q;
  const float* k;
  const float* v;
  const float* beta;
  const float* g;
  const int32_t* segments;
  const float* initial_state;  // may be absent
  const int32_t* initial_segment;
};

// One row and value head.
struct DeltaHead {
  DeltaHead(const DeltaParams& params, const DeltaInputs& inputs, int64_t row_index, int64_t value_head)
      : p(params),
        in(inputs),
        row(row_index),
        head(value_head),
        key_head(value_head / (params.value_heads / params.key_heads)),
        segments(inputs.segments + row_index * params.tokens) {
    // The carried state is read only if the row goes on with its segment, or has nothing of its own.
    if (in.initial_state == nullptr) return;
    int32_t first = 0;
    for (int64_t t = 0; t < p.tokens && first == 0; ++t) first = segments[t];
    if (first != 0 && first != in.initial_segment[row]) return;
    initial = in.initial_state + (row * p.value_heads + head) * state_size();
    initial_of = in.initial_segment[row];
  }

  [[nodiscard]] int64_t state_size() const { return p.key_dim * p.value_dim; }
  [[nodiscard]] int64_t state_at() const { return (row * p.value_heads + head) * state_size(); }
  [[nodiscard]] int64_t chunk_state_at(int64_t chunk) const {
    return ((row * p.chunks() + chunk) * p.value_heads + head) * state_size();
  }
  [[nodiscard]] int64_t key_at(int64_t t) const {
    return ((row * p.tokens + t) * p.key_heads + key_head) * p.key_dim;
  }
  [[nodiscard]] int64_t gate_at(int64_t t) const { return (row * p.tokens + t) * p.value_heads + head; }
  [[nodiscard]] int64_t value_at(int64_t t) const { return gate_at(t) * p.value_dim; }
  // Segment of the state that enters a chunk; 0 if no token has written it.
  [[nodiscard]] int32_t entering_segment(int64_t chunk) const {
    for (int64_t t = chunk * p.chunk - 1; t >= 0; --t) {
      if (segments[t] != 0) return segments[t];
    }
    return initial_of;
  }

  const DeltaParams& p;
  const DeltaInputs& in;
  int64_t row;
  int64_t head;
  int64_t key_head;
  const int32_t* segments;         // of this row
  const float* initial = nullptr;  // of this head; nullptr: starts from zeros
  int32_t initial_of = 0;
};

// Hands out pieces of a thread's workspace.
struct TileSpace {
  template <typename T = float>
  T* take(int64_t count) {
    auto* piece = reinterpret_cast<T*>(at);
    at += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  std::byte* at;
};

struct DeltaTiles {
  DeltaTiles(const DeltaParams& p, TileSpace& space)
      : token(space.take<int32_t>(p.chunk)),
        start(space.take<int32_t>(p.chunk)),
        gam(space.take<double>(p.chunk)),
        beta(space.take(p.chunk)),
        enter(space.take(p.chunk)),
        leave(space.take(p.chunk)),
        row_scale(space.take(p.chunk)),
        q(space.take(p.chunk * p.key_dim)),
        k(space.take(p.chunk * p.key_dim)),
        scaled(space.take(p.chunk * p.key_dim)),
        decay(space.take(p.chunk * p.chunk)),
        l(space.take(p.chunk * p.chunk)),
        p_matrix(space.take(p.chunk * p.chunk)),
        inverse(space.take(p.chunk * p.chunk)),
        square(space.take(p.chunk * p.chunk)),
        r(space.take(p.chunk * p.value_dim)),
        news(space.take(p.chunk * p.value_dim)) {}

  int64_t n = 0;        // tokens in the tiles
  bool enters = false;  // the first of them goes on with the entering state
  float keep = 0;
  int32_t* token;  // its place in the row
  int32_t* start;  // the first tile row of its segment
  double* gam;     // f64: differences of long sums must not lose the small gates
  float* beta;
  float* enter;
  float* leave;
  float* row_scale;
  float* q;
  float* k;
  float* scaled;
  float* decay;
  float* l;
  float* p_matrix;
  float* inverse;
  float* square;
  float* r;
  float* news;
};

// out_i = scale_i x_i.
inline void scale_rows(int64_t n, int64_t width, const float* scale, const float* x, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float s = scale[i];
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[i * width + c] = s * x[i * width + c];
  }
}

// Collects the tokens [begin, end), at most a chunk, and their gates. entering: segment of the entering state.
inline void load_gates(const DeltaHead& x, int64_t begin, int64_t end, int32_t entering, DeltaTiles& tiles) {
  int64_t n = 0;
  tiles.enters = false;
  tiles.keep = 0.0F;
  for (int64_t t = begin; t < end; ++t) {
    if (x.segments[t] == 0) continue;
    if (n == 0) tiles.enters = x.segments[t] == entering;
    const bool goes_on = n > 0 && x.segments[tiles.token[n - 1]] == x.segments[t];
    tiles.token[n] = static_cast<int32_t>(t);
    tiles.start[n] = goes_on ? tiles.start[n - 1] : static_cast<int32_t>(n);
    tiles.gam[n] = (goes_on ? tiles.gam[n - 1] : 0.0) + static_cast<double>(x.in.g[x.gate_at(t)]);
    tiles.beta[n] = x.in.beta[x.gate_at(t)];
    ++n;
  }
  tiles.n = n;
  if (n == 0) return;
  const int32_t last_start = tiles.start[n - 1];
  const double last = tiles.gam[n - 1];
  for (int64_t i = 0; i < n; ++i) {
    const float into =
        tiles.enters && tiles.start[i] == 0 ? static_cast<float>(tiles.gam[i]) : -__builtin_inff();
    const float out =
        tiles.start[i] == last_start ? static_cast<float>(last - tiles.gam[i]) : -__builtin_inff();
    tiles.enter[i] = exp_f32(into);
    tiles.leave[i] = exp_f32(out);
  }
  tiles.keep = tiles.enter[n - 1];
}

// decay and L from K K^T, and P from Q K^T where queries are wanted. Only exponents of pairs of one segment are
// looked at.
template <bool kQueries>
inline void mask_pairs(DeltaTiles& tiles) {
  const int64_t n = tiles.n;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t first = tiles.start[i];
    float* decay = tiles.decay + i * n;
    float* l = tiles.l + i * n;
    float* p = tiles.p_matrix + i * n;
    const double gam = tiles.gam[i];
    const float beta = tiles.beta[i];
    fill(decay, first, 0.0F);
    fill(l, first, 0.0F);
    if constexpr (kQueries) fill(p, first, 0.0F);
#pragma omp simd
    for (int64_t j = first; j <= i; ++j) {
      const float d = exp_f32(static_cast<float>(gam - tiles.gam[j]));
      decay[j] = d;
      l[j] *= beta * d;
      if constexpr (kQueries) p[j] *= d;
    }
    l[i] = 0.0F;
    fill(decay + i + 1, n - i - 1, 0.0F);
    fill(l + i + 1, n - i - 1, 0.0F);
    if constexpr (kQueries) fill(p + i + 1, n - i - 1, 0.0F);
  }
}

// Everything of the tokens [begin, end) that does not depend on the state; without queries P is left alone. False if all
// are padding.
template <bool kQueries = true>
inline bool load_tokens(const DeltaHead& x, int64_t begin, int64_t end, int32_t entering, DeltaTiles& tiles) {
  load_gates(x, begin, end, entering, tiles);
  const int64_t n = tiles.n;
  if (n == 0) return false;
  const int64_t dk = x.p.key_dim;
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (kQueries) copy(tiles.q + i * dk, x.in.q + x.key_at(tiles.token[i]), dk);
    copy(tiles.k + i * dk, x.in.k + x.key_at(tiles.token[i]), dk);
  }
  gemm_f32(false, true, n, n, dk, 1.0F, tiles.k, dk, tiles.k, dk, 0.0F, tiles.l, n);
  if constexpr (kQueries) {
    gemm_f32(false, true, n, n, dk, 1.0F, tiles.q, dk, tiles.k, dk, 0.0F, tiles.p_matrix, n);
  }
  mask_pairs<kQueries>(tiles);
  unit_lower_inverse(n, tiles.l, tiles.inverse, tiles.square);
  return true;
}

// The chunk of the row's own grid.
inline bool load_chunk(const DeltaHead& x, int64_t chunk, int32_t entering, DeltaTiles& tiles) {
  const int64_t begin = chunk * x.p.chunk;
  return load_tokens(x, begin, min_of(begin + x.p.chunk, x.p.tokens), entering, tiles);
}

// scaled = enter beta K.
inline void scale_entering_keys(const DeltaHead& x, DeltaTiles& tiles) {
  for (int64_t i = 0; i < tiles.n; ++i) tiles.row_scale[i] = tiles.enter[i] * tiles.beta[i];
  scale_rows(tiles.n, x.p.key_dim, tiles.row_scale, tiles.k, tiles.scaled);
}

// news = N, given the entering state (not read if no token goes on with it).
inline void new_values(const DeltaHead& x, const float* state, DeltaTiles& tiles) {
  const int64_t n = tiles.n;
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  for (int64_t i = 0; i < n; ++i) {
    const float* v = x.in.v + x.value_at(tiles.token[i]);
    for (int64_t c = 0; c < dv; ++c) tiles.r[i * dv + c] = tiles.beta[i] * v[c];
  }
  if (tiles.enters) {
    scale_entering_keys(x, tiles);
    gemm_f32(false, false, n, dv, dk, -1.0F, tiles.scaled, dk, state, dv, 1.0F, tiles.r, dv);
  }
  gemm_f32(false, false, n, dv, n, 1.0F, tiles.inverse, n, tiles.r, dv, 0.0F, tiles.news, dv);
}

// dr: gradient of R = (I + L) N, from the outputs and from the leaving state.
inline void backward_values(const DeltaHead& x, const float* d_out, const float* d_state, DeltaTiles& tiles,
                            float* dr) {
  const int64_t n = tiles.n;
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  float* d_news = tiles.r;
  scale_rows(n, dk, tiles.leave, tiles.k, tiles.scaled);
  gemm_f32(true, false, n, dv, n, 1.0F, tiles.p_matrix, n, d_out, dv, 0.0F, d_news, dv);
  gemm_f32(false, false, n, dv, dk, 1.0F, tiles.scaled, dk, d_state, dv, 1.0F, d_news, dv);
  gemm_f32(true, false, n, dv, n, 1.0F, tiles.inverse, n, d_news, dv, 0.0F, dr, dv);
}

// d_state: from the leaving to the entering state.
inline void backward_state(const DeltaHead& x, const float* d_out, const float* dr, DeltaTiles& tiles,
                           float* d_state) {
  const int64_t n = tiles.n;
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  if (!tiles.enters) {
    fill(d_state, x.state_size(), 0.0F);
    return;
  }
  scale_rows(n, dk, tiles.enter, tiles.q, tiles.scaled);
  gemm_f32(true, false, dk, dv, n, 1.0F, tiles.scaled, dk, d_out, dv, tiles.keep, d_state, dv);
  scale_entering_keys(x, tiles);
  gemm_f32(true, false, dk, dv, n, -1.0F, tiles.scaled, dk, dr, dv, 1.0F, d_state, dv);
}

}  // namespace
}  // namespace lathe::LATHE_ISA_NAMESPACE
