// The chunked form. A task is one row and value head, walking over its chunks.
#include "lathe/kernels/gated_delta_rule.h"
#include "lathe/kernels/gated_delta_rule_chunk.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// Calls fn(t) for the padding tokens of a chunk.
template <typename Fn>
inline void for_padding(const DeltaHead& x, int64_t chunk, Fn&& fn) {
  const int64_t begin = chunk * x.p.chunk;
  const int64_t end = min_of(begin + x.p.chunk, x.p.tokens);
  for (int64_t t = begin; t < end; ++t) {
    if (x.segments[t] == 0) fn(t);
  }
}

// Writes the outputs of a chunk and turns the entering state into the leaving one.
void forward_chunk(const DeltaHead& x, DeltaTiles& tiles, float* state, float* o) {
  const int64_t n = tiles.n;
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  new_values(x, state, tiles);
  float* out = tiles.r;
  if (tiles.enters) {
    scale_rows(n, dk, tiles.enter, tiles.q, tiles.scaled);
    gemm_f32(false, false, n, dv, dk, 1.0F, tiles.scaled, dk, state, dv, 0.0F, out, dv);
  }
  gemm_f32(false, false, n, dv, n, 1.0F, tiles.p_matrix, n, tiles.news, dv, tiles.enters ? 1.0F : 0.0F, out,
           dv);
  for (int64_t i = 0; i < n; ++i) copy(o + x.value_at(tiles.token[i]), out + i * dv, dv);
  scale_rows(n, dk, tiles.leave, tiles.k, tiles.scaled);
  gemm_f32(true, false, dk, dv, n, 1.0F, tiles.scaled, dk, tiles.news, dv, tiles.keep, state, dv);
}

void forward_head(const DeltaHead& x, std::byte* workspace, float* o, float* final_state,
                  float* chunk_states) {
  TileSpace space{workspace};
  DeltaTiles tiles(x.p, space);
  float* state = space.take(x.state_size());
  if (x.initial != nullptr) {
    copy(state, x.initial, x.state_size());
  } else {
    fill(state, x.state_size(), 0.0F);
  }
  int32_t active = x.initial_of;
  for (int64_t chunk = 0; chunk < x.p.chunks(); ++chunk) {
    if (chunk_states != nullptr) copy(chunk_states + x.chunk_state_at(chunk), state, x.state_size());
    for_padding(x, chunk, [&](int64_t t) { fill(o + x.value_at(t), x.p.value_dim, 0.0F); });
    if (!load_chunk(x, chunk, active, tiles)) continue;
    forward_chunk(x, tiles, state, o);
    active = x.segments[tiles.token[tiles.n - 1]];
  }
  if (final_state != nullptr) copy(final_state + x.state_at(), state, x.state_size());
}

void forward(Queue& queue, const DeltaParams& p, ConstView q, ConstView k, ConstView v, ConstView beta,
             ConstView g, ConstView segments, ConstView initial_state, ConstView initial_segment, View o,
             View final_state, View chunk_states) {
  check_gated_delta_rule_forward(p, q, k, v, beta, g, segments, initial_state, initial_segment, o,
                                 final_state, chunk_states);
  check_gated_delta_rule_tiles(p);
  const DeltaInputs in{floats(q),
                       floats(k),
                       floats(v),
                       floats(beta),
                       floats(g),
                       integers(segments),
                       floats(initial_state),
                       integers(initial_segment)};
  parallel_for(queue, p.rows * p.value_heads, [&](int64_t i, int thread) {
    const DeltaHead head(p, in, i / p.value_heads, i % p.value_heads);
    forward_head(head, queue.thread_workspace(thread), floats(o), floats(final_state), floats(chunk_states));
  });
}

struct Gradients {
  const float* d_o;
  const float* d_final_state;  // may be absent
  const float* chunk_states;
  float* dq;  // one per value head
  float* dk;
  float* dv;
  float* dbeta;
  float* dg;
  float* d_initial_state;  // may be absent
};

struct BackwardTiles {
  BackwardTiles(const DeltaParams& p, TileSpace& space)
      : d_out(space.take(p.chunk * p.value_dim)),
        dr(space.take(p.chunk * p.value_dim)),
        square(space.take(p.chunk * p.chunk)),
        dq(space.take(p.chunk * p.key_dim)),
        d_beta_k(space.take(p.chunk * p.key_dim)),
        dk(space.take(p.chunk * p.key_dim)),
        d_enter(space.take(p.chunk)),
        d_leave(space.take(p.chunk)),
        columns(space.take(p.chunk)),
        dg(space.take(p.chunk)),
        d_state(space.take(p.key_dim * p.value_dim)) {}

  float* d_out;
  float* dr;
  float* square;
  float* dq;
  float* d_beta_k;  // of beta k
  float* dk;
  float* d_enter;  // enter_i times its gradient
  float* d_leave;  // leave_i times its gradient
  float* columns;
  float* dg;
  float* d_state;  // of the leaving state, then of the entering one
};

// tiles.square = dL decay, y.square = dP decay, and in place of L: dL L + dP P, what each pair adds to the
// exponents gam_i - gam_j.
void backward_pairs(const DeltaHead& x, DeltaTiles& tiles, BackwardTiles& y) {
  const int64_t n = tiles.n;
  const int64_t dv = x.p.value_dim;
  gemm_f32(false, true, n, n, dv, -1.0F, y.dr, dv, tiles.news, dv, 0.0F, tiles.square, n);
  gemm_f32(false, true, n, n, dv, 1.0F, y.d_out, dv, tiles.news, dv, 0.0F, y.square, n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t first = tiles.start[i];
    const float* decay = tiles.decay + i * n;
    const float* p = tiles.p_matrix + i * n;
    float* l = tiles.l + i * n;
    float* dl = tiles.square + i * n;
    float* dp = y.square + i * n;
    fill(dl, first, 0.0F);
    fill(dp, first, 0.0F);
#pragma omp simd
    for (int64_t j = first; j <= i; ++j) {
      l[j] = dl[j] * l[j] + dp[j] * p[j];
      dl[j] *= decay[j];
      dp[j] *= decay[j];
    }
    fill(dl + i, n - i, 0.0F);
    fill(dp + i + 1, n - i - 1, 0.0F);
  }
}

// Gradients of q, beta k, k and of the decays into and out of the chunk.
void backward_keys(const DeltaHead& x, const float* state, DeltaTiles& tiles, BackwardTiles& y) {
  const int64_t n = tiles.n;
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  fill(y.d_enter, n, 0.0F);
  if (tiles.enters) {
    gemm_f32(false, true, n, dk, dv, 1.0F, y.d_out, dv, state, dv, 0.0F, y.dq, dk);
    gemm_f32(false, true, n, dk, dv, -1.0F, y.dr, dv, state, dv, 0.0F, y.d_beta_k, dk);
    scale_rows(n, dk, tiles.enter, y.dq, y.dq);
    scale_rows(n, dk, tiles.enter, y.d_beta_k, y.d_beta_k);
    for (int64_t i = 0; i < n; ++i) {
      y.d_enter[i] = dot(y.dq + i * dk, tiles.q + i * dk, dk) +
                     tiles.beta[i] * dot(y.d_beta_k + i * dk, tiles.k + i * dk, dk);
    }
  }
  const float add = tiles.enters ? 1.0F : 0.0F;
  gemm_f32(false, false, n, dk, n, 1.0F, y.square, n, tiles.k, dk, add, y.dq, dk);
  gemm_f32(false, false, n, dk, n, 1.0F, tiles.square, n, tiles.k, dk, add, y.d_beta_k, dk);

  gemm_f32(false, true, n, dk, dv, 1.0F, tiles.news, dv, y.d_state, dv, 0.0F, y.dk, dk);
  scale_rows(n, dk, tiles.leave, y.dk, y.dk);
  for (int64_t i = 0; i < n; ++i) y.d_leave[i] = dot(y.dk + i * dk, tiles.k + i * dk, dk);
  scale_rows(n, n, tiles.beta, tiles.square, tiles.square);
  gemm_f32(true, false, n, dk, n, 1.0F, y.square, n, tiles.q, dk, 1.0F, y.dk, dk);
  gemm_f32(true, false, n, dk, n, 1.0F, tiles.square, n, tiles.k, dk, 1.0F, y.dk, dk);
}

// g_t is part of the exponents of all pairs j < t <= i, of the entering state up to the tokens i >= t, of the
// tokens i < t up to the leaving state, and of keep. Summed as such: sums over gam_i would cancel to almost
// nothing. d_enter and d_keep are 0 where the entering state does not reach.
void backward_decay(const DeltaTiles& tiles, float d_keep, BackwardTiles& y) {
  const int64_t n = tiles.n;
  const int64_t last_start = tiles.start[n - 1];
  fill(y.columns, n, 0.0F);
  float entered = 0.0F;
  for (int64_t t = n - 1; t >= 0; --t) {
    const float* pairs = tiles.l + t * n;
    const int64_t first = tiles.start[t];  // rows of later segments have touched no column from here to t
    float sum = 0.0F;
#pragma omp simd
    for (int64_t j = first; j < t; ++j) y.columns[j] += pairs[j];
#pragma omp simd reduction(+ : sum)
    for (int64_t j = first; j < t; ++j) sum += y.columns[j];
    entered += y.d_enter[t];
    y.dg[t] = sum + entered + d_keep;
  }
  float left = 0.0F;
  for (int64_t t = last_start; t < n; ++t) {
    y.dg[t] += left;
    left += y.d_leave[t];
  }
}

void write_gradients(const DeltaHead& x, const DeltaTiles& tiles, const BackwardTiles& y,
                     const Gradients& to) {
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  for (int64_t i = 0; i < tiles.n; ++i) {
    const int64_t gate = x.gate_at(tiles.token[i]);
    const float beta = tiles.beta[i];
    const float* d_beta_k = y.d_beta_k + i * dk;
    const float* dr = y.dr + i * dv;
    copy(to.dq + gate * dk, y.dq + i * dk, dk);
    for (int64_t c = 0; c < dk; ++c) to.dk[gate * dk + c] = y.dk[i * dk + c] + beta * d_beta_k[c];
    for (int64_t c = 0; c < dv; ++c) to.dv[gate * dv + c] = beta * dr[c];
    to.dbeta[gate] = dot(dr, x.in.v + gate * dv, dv) + dot(d_beta_k, tiles.k + i * dk, dk);
    to.dg[gate] = y.dg[i];
  }
}

void backward_head(const DeltaHead& x, std::byte* workspace, const Gradients& to) {
  const int64_t dk = x.p.key_dim;
  const int64_t dv = x.p.value_dim;
  TileSpace space{workspace};
  DeltaTiles tiles(x.p, space);
  BackwardTiles y(x.p, space);
  if (to.d_final_state != nullptr) {
    copy(y.d_state, to.d_final_state + x.state_at(), x.state_size());
  } else {
    fill(y.d_state, x.state_size(), 0.0F);
  }
  for (int64_t chunk = x.p.chunks() - 1; chunk >= 0; --chunk) {
    for_padding(x, chunk, [&](int64_t t) {
      const int64_t gate = x.gate_at(t);
      fill(to.dq + gate * dk, dk, 0.0F);
      fill(to.dk + gate * dk, dk, 0.0F);
      fill(to.dv + gate * dv, dv, 0.0F);
      to.dbeta[gate] = 0.0F;
      to.dg[gate] = 0.0F;
    });
    if (!load_chunk(x, chunk, x.entering_segment(chunk), tiles)) continue;
    const float* state = to.chunk_states + x.chunk_state_at(chunk);
    new_values(x, state, tiles);
    for (int64_t i = 0; i < tiles.n; ++i) copy(y.d_out + i * dv, to.d_o + x.value_at(tiles.token[i]), dv);
    backward_values(x, y.d_out, y.d_state, tiles, y.dr);
    backward_pairs(x, tiles, y);
    backward_keys(x, state, tiles, y);
    const float d_keep = tiles.keep == 0.0F ? 0.0F : tiles.keep * dot(y.d_state, state, x.state_size());
    backward_decay(tiles, d_keep, y);
    backward_state(x, y.d_out, y.dr, tiles, y.d_state);
    write_gradients(x, tiles, y, to);
  }
  if (to.d_initial_state == nullptr) return;
  if (x.initial == nullptr) fill(y.d_state, x.state_size(), 0.0F);
  copy(to.d_initial_state + x.state_at(), y.d_state, x.state_size());
}

// to [tokens, key_heads, width] = sums over the value heads of each key head of from [tokens, value_heads,
// width].
void sum_heads(Queue& queue, const DeltaParams& p, const float* from, float* to) {
  constexpr int64_t kTokens = 64;
  const int64_t tokens = p.rows * p.tokens;
  const int64_t repeat = p.value_heads / p.key_heads;
  parallel_for(queue, ceil_div(tokens, kTokens), [&](int64_t block) {
    const int64_t end = min_of((block + 1) * kTokens, tokens) * p.key_heads;
    for (int64_t i = block * kTokens * p.key_heads; i < end; ++i) {
      float* sum = to + i * p.key_dim;
      copy(sum, from + i * repeat * p.key_dim, p.key_dim);
      for (int64_t r = 1; r < repeat; ++r) {
        const float* next = from + (i * repeat + r) * p.key_dim;
        for (int64_t c = 0; c < p.key_dim; ++c) sum[c] += next[c];
      }
    }
  });
}

void backward(Queue& queue, const DeltaParams& p, ConstView d_o, ConstView d_final_state, ConstView q,
              ConstView k, ConstView v, ConstView beta, ConstView g, ConstView segments,
              ConstView initial_state, ConstView initial_segment, ConstView chunk_states, View dq, View dk,
              View dv, View dbeta, View dg, View d_initial_state, View scratch) {
  check_gated_delta_rule_backward(p, d_o, d_final_state, q, k, v, beta, g, segments, initial_state,
                                  initial_segment, chunk_states, dq, dk, dv, dbeta, dg, d_initial_state,
                                  scratch);
  check_gated_delta_rule_tiles(p);
  const DeltaInputs in{floats(q),
                       floats(k),
                       floats(v),
                       floats(beta),
                       floats(g),
                       integers(segments),
                       floats(initial_state),
                       integers(initial_segment)};
  const bool shared = p.value_heads != p.key_heads;
  float* dq_heads = shared ? floats(scratch) : floats(dq);
  float* dk_heads = shared ? floats(scratch) + gated_delta_rule_backward_scratch(p) / 2 : floats(dk);
  const Gradients to{floats(d_o),
                     floats(d_final_state),
                     floats(chunk_states),
                     dq_heads,
                     dk_heads,
                     floats(dv),
                     floats(dbeta),
                     floats(dg),
                     floats(d_initial_state)};
  parallel_for(queue, p.rows * p.value_heads, [&](int64_t i, int thread) {
    const DeltaHead head(p, in, i / p.value_heads, i % p.value_heads);
    backward_head(head, queue.thread_workspace(thread), to);
  });
  if (!shared) return;
  sum_heads(queue, p, dq_heads, floats(dq));
  sum_heads(queue, p, dk_heads, floats(dk));
}

}  // namespace

void register_gated_delta_rule(KernelTable& table) {
  table.gated_delta_rule_forward = forward;
  table.gated_delta_rule_backward = backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
