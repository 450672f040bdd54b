#include <cstring>

#include "lathe/kernels/access.h"
#include "lathe/kernels/attention_tiles.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/onednn_gemm.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_math.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

constexpr int64_t kTile = kAttentionTile;
using Tile = float[kTile][kTile];

// Products are made on blocks: the queries of one segment in a query tile by the keys of that segment in a key tile.
// What another segment holds, padding included, enters no product; only causality is masked inside a block.
struct Block {
  int64_t q_begin;
  int64_t queries;
  int64_t key_begin;
  int64_t keys;
  int64_t ahead;  // keys that the first query sees; each further query sees one more

  Block(const AttentionParams& p, int64_t q0, int64_t q1, int64_t k0, int64_t k1)
      : q_begin(q0), queries(q1 - q0), key_begin(k0), keys(k1 - k0), ahead(p.q_offset + q0 - k0 + 1) {}
  [[nodiscard]] int64_t seen_by(int64_t i) const { return max_of(min_of(ahead + i, keys), int64_t{0}); }
};

// Tensors seen from one row, one query head and its key head.
struct Head {
  const AttentionParams& params;
  AttentionRow segments;
  int64_t row;
  int64_t head;
  int64_t kv_head;

  Head(const AttentionParams& p, ConstView q_segments, ConstView kv_segments, int64_t r, int64_t h)
      : params(p), row(r), head(h), kv_head(h / (p.q_heads / p.kv_heads)) {
    segments.q_segments = elements<int32_t>(q_segments) + r * p.q_tokens;
    segments.kv_segments = elements<int32_t>(kv_segments) + r * p.kv_tokens;
    segments.q_tokens = p.q_tokens;
    segments.kv_tokens = p.kv_tokens;
    segments.q_offset = p.q_offset;
  }
  [[nodiscard]] int64_t q_stride() const { return params.q_heads * params.head_dim; }
  [[nodiscard]] int64_t kv_stride() const { return params.kv_heads * params.head_dim; }
  template <typename T>
  [[nodiscard]] T* query(T* base, int64_t i) const {
    return base + (row * params.q_tokens + i) * q_stride() + head * params.head_dim;
  }
  template <typename T>
  [[nodiscard]] T* key(T* base, int64_t j) const {
    return base + (row * params.kv_tokens + j) * kv_stride() + kv_head * params.head_dim;
  }
  // Element of lse and delta.
  [[nodiscard]] int64_t scalar(int64_t i) const {
    return (row * params.q_tokens + i) * params.q_heads + head;
  }
};

// a b^T of the block's queries (rows of a) and keys (rows of b).
void pair_products(const Head& h, const Block& block, float alpha, const float* a, const float* b,
                   Tile& out) {
  gemm_f32(false, true, block.queries, block.keys, h.params.head_dim, alpha, h.query(a, block.q_begin),
           h.q_stride(), h.key(b, block.key_begin), h.kv_stride(), 0, out[0], kTile);
}

void zero_rows(float* first, int64_t rows, int64_t stride, int64_t width) {
  for (int64_t i = 0; i < rows; ++i)
    std::memset(first + i * stride, 0, static_cast<size_t>(width) * sizeof(float));
}

int64_t next_tile(int64_t position, int64_t end) {
  return min_of((position / kTile + 1) * kTile, end);
}

// ---- forward: online softmax over the key tiles of a run of queries -------------------------------------------------

struct Softmax {
  Tile p;
  float top[kTile];
  float sum[kTile];
  // queries x head_dim of unnormalised outputs follow.
};

float* outputs_of(Softmax& state) {
  return reinterpret_cast<float*>(&state + 1);
}

// Scores of row i become exp(score - top); the outputs so far move to the new top.
void absorb_scores(Softmax& state, const Block& block, int64_t i, bool first, int64_t head_dim) {
  float* __restrict p = state.p[i];
  const int64_t seen = block.seen_by(i);
  float top = state.top[i];
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < seen; ++j) top = p[j] > top ? p[j] : top;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < seen; ++j) {
    p[j] = exp_f32(p[j] - top);
    sum += p[j];
  }
  for (int64_t j = seen; j < block.keys; ++j) p[j] = 0;
  if (seen == 0 || top == state.top[i]) {
    state.sum[i] += sum;
    return;
  }
  const float shrink = exp_f32(state.top[i] - top);
  state.top[i] = top;
  state.sum[i] = state.sum[i] * shrink + sum;
  if (first) return;
  float* out = outputs_of(state) + i * head_dim;
#pragma omp simd
  for (int64_t d = 0; d < head_dim; ++d) out[d] *= shrink;
}

struct ForwardTensors {
  const float* q;
  const float* k;
  const float* v;
  float* o;
  float* lse;
};

void attend_run(const Head& h, const ForwardTensors& t, const AttentionRun& run, Softmax& state) {
  const int64_t head_dim = h.params.head_dim;
  const int64_t queries = run.q_end - run.q_begin;
  float* out = outputs_of(state);
  for (int64_t i = 0; i < queries; ++i) {
    state.top[i] = -__builtin_inff();
    state.sum[i] = 0;
  }
  for (int64_t k0 = run.key_begin; k0 < run.key_end; k0 = next_tile(k0, run.key_end)) {
    const Block block(h.params, run.q_begin, run.q_end, k0, next_tile(k0, run.key_end));
    const bool first = k0 == run.key_begin;
    pair_products(h, block, static_cast<float>(h.params.scale), t.q, t.k, state.p);
    for (int64_t i = 0; i < queries; ++i) absorb_scores(state, block, i, first, head_dim);
    gemm_f32(false, false, queries, head_dim, block.keys, 1, state.p[0], kTile, h.key(t.v, k0), h.kv_stride(),
             first ? 0.0F : 1.0F, out, head_dim);
  }
  for (int64_t i = 0; i < queries; ++i) {
    float* to = h.query(t.o, run.q_begin + i);
    float& lse = t.lse[h.scalar(run.q_begin + i)];
    if (state.sum[i] == 0) {  // sees nothing
      zero_rows(to, 1, 0, head_dim);
      lse = 0;
      continue;
    }
    const float scale = 1.0F / state.sum[i];
    const float* from = out + i * head_dim;
#pragma omp simd
    for (int64_t d = 0; d < head_dim; ++d) to[d] = from[d] * scale;
    lse = state.top[i] + log_f32(state.sum[i]);
  }
}

void attend_tile(const Head& h, const ForwardTensors& t, int64_t begin, int64_t end, Softmax& state) {
  while (begin < end) {
    const AttentionRun run = next_query_run(h.segments, begin, end);
    zero_rows(h.query(t.o, begin), run.q_begin - begin, h.q_stride(), h.params.head_dim);
    for (int64_t i = begin; i < run.q_begin; ++i) t.lse[h.scalar(i)] = 0;
    if (run.q_begin < end) attend_run(h, t, run, state);
    begin = run.q_end;
  }
}

// ---- backward ------------------------------------------------------------------------------------------------------

struct Gradients {
  Tile p;
  Tile ds;
};

struct BackwardTensors {
  const float* d_o;
  const float* q;
  const float* k;
  const float* v;
  const float* o;
  const float* lse;
  float* dq;
  float* dk;
  float* dv;
  float* delta;
};

// p and ds of a block; 0 where causality forbids, whatever the products are there.
void block_gradients(const Head& h, const BackwardTensors& t, const Block& block, Gradients& g) {
  const auto scale = static_cast<float>(h.params.scale);
  pair_products(h, block, scale, t.q, t.k, g.p);
  pair_products(h, block, 1, t.d_o, t.v, g.ds);
  for (int64_t i = 0; i < block.queries; ++i) {
    float* __restrict p = g.p[i];
    float* __restrict ds = g.ds[i];
    const float lse = t.lse[h.scalar(block.q_begin + i)];
    const float delta = t.delta[h.scalar(block.q_begin + i)];
    const int64_t seen = block.seen_by(i);
#pragma omp simd
    for (int64_t j = 0; j < seen; ++j) {
      p[j] = exp_f32(p[j] - lse);
      ds[j] = scale * p[j] * (ds[j] - delta);
    }
    for (int64_t j = seen; j < block.keys; ++j) {
      p[j] = 0;
      ds[j] = 0;
    }
  }
}

// delta_i = <do_i, o_i> of the tokens [begin, end) of all rows.
void row_products(const AttentionParams& p, const BackwardTensors& t, int64_t begin, int64_t end) {
  for (int64_t i = begin * p.q_heads; i < end * p.q_heads; ++i) {
    const float* a = t.d_o + i * p.head_dim;
    const float* b = t.o + i * p.head_dim;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < p.head_dim; ++d) sum += a[d] * b[d];
    t.delta[i] = sum;
  }
}

void query_gradients(const Head& h, const BackwardTensors& t, int64_t begin, int64_t end, Gradients& g) {
  const int64_t head_dim = h.params.head_dim;
  while (begin < end) {
    const AttentionRun run = next_query_run(h.segments, begin, end);
    const int64_t unseeing = run.key_begin == run.key_end ? run.q_end : run.q_begin;
    zero_rows(h.query(t.dq, begin), unseeing - begin, h.q_stride(), head_dim);
    for (int64_t k0 = run.key_begin; k0 < run.key_end; k0 = next_tile(k0, run.key_end)) {
      const Block block(h.params, run.q_begin, run.q_end, k0, next_tile(k0, run.key_end));
      block_gradients(h, t, block, g);
      gemm_f32(false, false, block.queries, head_dim, block.keys, 1, g.ds[0], kTile, h.key(t.k, k0),
               h.kv_stride(), k0 == run.key_begin ? 0.0F : 1.0F, h.query(t.dq, run.q_begin), h.q_stride());
    }
    begin = run.q_end;
  }
}

// dk and dv of the keys of a run, from one query head; beta 0 overwrites, 1 adds.
void add_key_gradients(const Head& h, const BackwardTensors& t, const AttentionRun& run, float beta,
                       Gradients& g) {
  const int64_t head_dim = h.params.head_dim;
  for (int64_t q0 = run.q_begin; q0 < run.q_end; q0 = next_tile(q0, run.q_end)) {
    const Block block(h.params, q0, next_tile(q0, run.q_end), run.key_begin, run.key_end);
    block_gradients(h, t, block, g);
    gemm_f32(true, false, block.keys, head_dim, block.queries, 1, g.p[0], kTile, h.query(t.d_o, q0),
             h.q_stride(), beta, h.key(t.dv, run.key_begin), h.kv_stride());
    gemm_f32(true, false, block.keys, head_dim, block.queries, 1, g.ds[0], kTile, h.query(t.q, q0),
             h.q_stride(), beta, h.key(t.dk, run.key_begin), h.kv_stride());
    beta = 1;
  }
}

// ---- entry points --------------------------------------------------------------------------------------------------

void check_arguments(const AttentionParams& p, ConstView q, ConstView k, ConstView v, ConstView q_segments,
                     ConstView kv_segments) {
  check_shape("attention", "q", q, {p.rows * p.q_tokens, p.q_heads, p.head_dim});
  check_shape("attention", "k", k, {p.rows * p.kv_tokens, p.kv_heads, p.head_dim});
  check_shape("attention", "v", v, k.shape);
  check_shape("attention", "q_segments", q_segments, {p.rows * p.q_tokens});
  check_shape("attention", "kv_segments", kv_segments, {p.rows * p.kv_tokens});
  LATHE_CHECK(p.q_heads % p.kv_heads == 0, "attention: {} heads on {}", p.q_heads, p.kv_heads);
  const auto needed = static_cast<int64_t>(sizeof(Softmax)) + kTile * p.head_dim * 4;
  LATHE_CHECK(needed <= Queue::kThreadWorkspaceBytes, "attention: head_dim {}", p.head_dim);
}

void attention_forward(Queue& queue, const AttentionParams& params, ConstView q, ConstView k, ConstView v,
                       ConstView q_segments, ConstView kv_segments, View o, View lse) {
  check_arguments(params, q, k, v, q_segments, kv_segments);
  check_shape("attention", "o", o, q.shape);
  check_shape("attention", "lse", lse, {params.rows * params.q_tokens, params.q_heads});
  const ForwardTensors t{elements<float>(q), elements<float>(k), elements<float>(v), elements<float>(o),
                         elements<float>(lse)};
  const int64_t tiles = ceil_div(params.q_tokens, kTile);
  parallel_for(queue, params.rows * params.q_heads * tiles, [&](int64_t task, int thread) {
    auto& state = *reinterpret_cast<Softmax*>(queue.thread_workspace(thread));
    // The last tiles see the most keys: they go first.
    const int64_t tile = tiles - 1 - task / (params.rows * params.q_heads);
    const int64_t head = task % (params.rows * params.q_heads);
    const Head h(params, q_segments, kv_segments, head / params.q_heads, head % params.q_heads);
    attend_tile(h, t, tile * kTile, min_of((tile + 1) * kTile, params.q_tokens), state);
  });
}

void run_query_gradients(Queue& queue, const AttentionParams& params, const BackwardTensors& t,
                         ConstView q_segments, ConstView kv_segments) {
  const int64_t tiles = ceil_div(params.q_tokens, kTile);
  parallel_for(queue, params.rows * params.q_heads * tiles, [&](int64_t task, int thread) {
    auto& g = *reinterpret_cast<Gradients*>(queue.thread_workspace(thread));
    const int64_t tile = tiles - 1 - task / (params.rows * params.q_heads);
    const int64_t head = task % (params.rows * params.q_heads);
    const Head h(params, q_segments, kv_segments, head / params.q_heads, head % params.q_heads);
    query_gradients(h, t, tile * kTile, min_of((tile + 1) * kTile, params.q_tokens), g);
  });
}

// A task owns dk and dv of a key tile of one key head; its query heads add in order.
void run_key_gradients(Queue& queue, const AttentionParams& params, const BackwardTensors& t,
                       ConstView q_segments, ConstView kv_segments) {
  const int64_t tiles = ceil_div(params.kv_tokens, kTile);
  const int64_t group = params.q_heads / params.kv_heads;
  parallel_for(queue, params.rows * params.kv_heads * tiles, [&](int64_t task, int thread) {
    auto& g = *reinterpret_cast<Gradients*>(queue.thread_workspace(thread));
    // The first tiles are seen by the most queries: they go first.
    int64_t begin = task / (params.rows * params.kv_heads) * kTile;
    const int64_t end = min_of(begin + kTile, params.kv_tokens);
    const int64_t row = task % (params.rows * params.kv_heads) / params.kv_heads;
    const int64_t first_head = task % params.kv_heads * group;
    const Head first(params, q_segments, kv_segments, row, first_head);
    while (begin < end) {
      const AttentionRun run = next_key_run(first.segments, begin, end);
      const int64_t unseen = run.q_begin == run.q_end ? run.key_end : run.key_begin;
      zero_rows(first.key(t.dk, begin), unseen - begin, first.kv_stride(), params.head_dim);
      zero_rows(first.key(t.dv, begin), unseen - begin, first.kv_stride(), params.head_dim);
      for (int64_t i = 0; i < group; ++i) {
        const Head h(params, q_segments, kv_segments, row, first_head + i);
        add_key_gradients(h, t, run, i == 0 ? 0.0F : 1.0F, g);
      }
      begin = run.key_end;
    }
  });
}

void attention_backward(Queue& queue, const AttentionParams& params, ConstView d_o, ConstView q, ConstView k,
                        ConstView v, ConstView q_segments, ConstView kv_segments, ConstView o, ConstView lse,
                        View dq, View dk, View dv, View scratch) {
  check_arguments(params, q, k, v, q_segments, kv_segments);
  for (const ConstView& view : {d_o, o, ConstView(dq)})
    check_shape("attention", "do, o or dq", view, q.shape);
  for (const ConstView& view : {ConstView(dk), ConstView(dv)})
    check_shape("attention", "dk or dv", view, k.shape);
  LATHE_CHECK(scratch.size() >= attention_backward_scratch(params), "attention: scratch of {}",
              scratch.size());
  const BackwardTensors t{elements<float>(d_o),    elements<float>(q),  elements<float>(k),
                          elements<float>(v),      elements<float>(o),  elements<float>(lse),
                          elements<float>(dq),     elements<float>(dk), elements<float>(dv),
                          elements<float>(scratch)};
  const int64_t tokens = params.rows * params.q_tokens;
  parallel_for(queue, ceil_div(tokens, kTile), [&](int64_t task) {
    row_products(params, t, task * kTile, min_of((task + 1) * kTile, tokens));
  });
  run_query_gradients(queue, params, t, q_segments, kv_segments);
  run_key_gradients(queue, params, t, q_segments, kv_segments);
}

}  // namespace

void register_attention(KernelTable& table) {
  table.attention_forward = attention_forward;
  table.attention_backward = attention_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
