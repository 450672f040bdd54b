// The chunked form. A task is one row and value head, walking over the chunks of its span; the chunk grid starts at the
// span's first token, so tokens of other segments are in no tile.
#include "lathe/kernels/gated_delta_rule_chunk.h"
#include "lathe/kernels/gated_delta_rule_summary.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// Elements of a transition below this are 0: it starts from the identity, and what has decayed so far adds nothing to a
// state; as denormal numbers they would cost many times the rest.
constexpr float kVanished = 1e-30F;

// The state with the transition beside it, [key_dim, stride]: the columns of the transition are a state without values
// that starts from the identity. Once it has vanished, its columns are left out.
struct WideState {
  float* state;
  int64_t stride;
  int64_t width;  // columns in use: value_dim, or stride
};

void start(const DeltaParams& p, WideState& wide) {
  fill(wide.state, p.key_dim * wide.stride, 0.0F);
  if (wide.width == p.value_dim) return;
  for (int64_t i = 0; i < p.key_dim; ++i) wide.state[i * wide.stride + p.value_dim + i] = 1.0F;
}

void drop_vanished(const DeltaParams& p, WideState& wide) {
  if (wide.width == p.value_dim) return;
  float largest = 0.0F;
  for (int64_t i = 0; i < p.key_dim; ++i) {
    float* row = wide.state + i * wide.stride + p.value_dim;
#pragma omp simd reduction(max : largest)
    for (int64_t c = 0; c < p.key_dim; ++c) {
      const float size = row[c] < 0.0F ? -row[c] : row[c];
      row[c] = size < kVanished ? 0.0F : row[c];
      largest = size > largest ? size : largest;
    }
  }
  if (largest < kVanished) wide.width = p.value_dim;
}

// From the entering to the leaving state; r, news: [chunk, stride].
void sweep_chunk(const DeltaHead& x, DeltaTiles& tiles, const WideState& wide, float* r, float* news) {
  const int64_t n = tiles.n;
  const int64_t dk = x.p.key_dim;
  const int64_t width = wide.width;
  const int64_t stride = wide.stride;
  for (int64_t i = 0; i < n; ++i) {
    const float* v = x.in.v + x.value_at(tiles.token[i]);
    float* to = r + i * stride;
    for (int64_t c = 0; c < x.p.value_dim; ++c) to[c] = tiles.beta[i] * v[c];
    fill(to + x.p.value_dim, width - x.p.value_dim, 0.0F);
  }
  if (tiles.enters) {
    scale_entering_keys(x, tiles);
    gemm_f32(false, false, n, width, dk, -1.0F, tiles.scaled, dk, wide.state, stride, 1.0F, r, stride);
  }
  gemm_f32(false, false, n, width, n, 1.0F, tiles.inverse, n, r, stride, 0.0F, news, stride);
  scale_rows(n, dk, tiles.leave, tiles.k, tiles.scaled);
  gemm_f32(true, false, dk, width, n, 1.0F, tiles.scaled, dk, news, stride, tiles.keep, wide.state, stride);
}

void summary_head(const DeltaHead& x, int32_t entering, std::byte* workspace, float* transition,
                  float* to_state) {
  const DeltaParams& p = x.p;
  const DeltaSpan span = last_segment_span(x.segments, p.tokens, entering);
  const bool widened = transition != nullptr && span.continues;
  TileSpace space{workspace};
  DeltaTiles tiles(p, space);
  const int64_t stride = p.value_dim + (widened ? p.key_dim : 0);
  WideState wide{space.take(p.key_dim * stride), stride, stride};
  float* r = space.take(p.chunk * stride);
  float* news = space.take(p.chunk * stride);
  start(p, wide);
  int32_t active = span.continues ? entering : 0;
  for (int64_t begin = span.begin; begin < span.end; begin += p.chunk) {
    if (!load_tokens<false>(x, begin, min_of(begin + p.chunk, span.end), active, tiles)) continue;
    sweep_chunk(x, tiles, wide, r, news);
    drop_vanished(p, wide);
    active = x.segments[tiles.token[0]];
  }
  for (int64_t i = 0; i < p.key_dim; ++i)
    copy(to_state + x.state_at() + i * p.value_dim, wide.state + i * stride, p.value_dim);
  if (transition == nullptr) return;
  float* m = transition + (x.row * p.value_heads + x.head) * p.key_dim * p.key_dim;
  if (!widened || wide.width == p.value_dim) {
    fill(m, p.key_dim * p.key_dim, 0.0F);
    return;
  }
  for (int64_t i = 0; i < p.key_dim; ++i)
    copy(m + i * p.key_dim, wide.state + i * stride + p.value_dim, p.key_dim);
}

void summary(Queue& queue, const DeltaParams& p, ConstView k, ConstView v, ConstView beta, ConstView g,
             ConstView segments, ConstView entering_segment, View transition, View state) {
  check_gated_delta_rule_summary(p, k, v, beta, g, segments, entering_segment, transition, state);
  check_gated_delta_rule_tiles(p);
  const int64_t floats_needed = p.chunk * (5 * p.key_dim + 4 * p.value_dim + 5 * p.chunk + 16) +
                                p.key_dim * (p.key_dim + p.value_dim) + 16 * 32;
  LATHE_CHECK(floats_needed * 4 <= Queue::kThreadWorkspaceBytes,
              "gated_delta_rule_summary: chunk {} with dimensions {} and {} needs {} floats per thread",
              p.chunk, p.key_dim, p.value_dim, floats_needed);
  const DeltaInputs in{nullptr,   floats(k),          floats(v), floats(beta),
                       floats(g), integers(segments), nullptr,   nullptr};
  parallel_for(queue, p.rows * p.value_heads, [&](int64_t i, int thread) {
    const DeltaHead head(p, in, i / p.value_heads, i % p.value_heads);
    summary_head(head, integers(entering_segment)[head.row], queue.thread_workspace(thread),
                 floats(transition), floats(state));
  });
}

void adjoint_head(const DeltaHead& x, int32_t entering, std::byte* workspace, const float* d_o,
                  float* to_state) {
  const DeltaParams& p = x.p;
  const DeltaSpan span = first_segment_span(x.segments, p.tokens, entering);
  TileSpace space{workspace};
  DeltaTiles tiles(p, space);
  float* d_out = space.take(p.chunk * p.value_dim);
  float* dr = space.take(p.chunk * p.value_dim);
  float* d_state = to_state + x.state_at();
  fill(d_state, x.state_size(), 0.0F);
  for (int64_t chunk = ceil_div(span.end - span.begin, p.chunk) - 1; chunk >= 0; --chunk) {
    const int64_t begin = span.begin + chunk * p.chunk;
    if (!load_tokens(x, begin, min_of(begin + p.chunk, span.end), entering, tiles)) continue;
    for (int64_t i = 0; i < tiles.n; ++i)
      copy(d_out + i * p.value_dim, d_o + x.value_at(tiles.token[i]), p.value_dim);
    backward_values(x, d_out, d_state, tiles, dr);
    backward_state(x, d_out, dr, tiles, d_state);
  }
}

void adjoint_summary(Queue& queue, const DeltaParams& p, ConstView d_o, ConstView q, ConstView k,
                     ConstView beta, ConstView g, ConstView segments, ConstView entering_segment,
                     View d_state) {
  check_gated_delta_rule_adjoint_summary(p, d_o, q, k, beta, g, segments, entering_segment, d_state);
  check_gated_delta_rule_tiles(p);
  const DeltaInputs in{floats(q), floats(k),          nullptr, floats(beta),
                       floats(g), integers(segments), nullptr, nullptr};
  parallel_for(queue, p.rows * p.value_heads, [&](int64_t i, int thread) {
    const DeltaHead head(p, in, i / p.value_heads, i % p.value_heads);
    adjoint_head(head, integers(entering_segment)[head.row], queue.thread_workspace(thread), floats(d_o),
                 floats(d_state));
  });
}

bool all_zero(const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] != 0.0F) return false;
  }
  return true;
}

void fold(Queue& queue, const GatedDeltaRuleFoldParams& p, ConstView transitions, ConstView states,
          View result) {
  check_gated_delta_rule_fold(p, transitions, states, result);
  const int64_t heads = p.rows * p.value_heads;
  const int64_t dk = p.key_dim;
  const int64_t dv = p.value_dim;
  const int64_t size = dk * dv;
  LATHE_CHECK(size * 4 <= Queue::kThreadWorkspaceBytes, "gated_delta_rule_fold: state of {} x {}", dk, dv);
  parallel_for(queue, heads, [&](int64_t head, int thread) {
    float* state = floats(result) + head * size;
    auto* before = reinterpret_cast<float*>(queue.thread_workspace(thread));
    fill(state, size, 0.0F);
    for (int64_t i = 0; i < p.count; ++i) {
      const int64_t shard = (p.backward ? p.count - 1 - i : i) * heads + head;
      copy(before, state, size);
      copy(state, floats(states) + shard * size, size);
      if (i == 0) continue;
      const float* m = floats(transitions) + shard * dk * dk;
      if (all_zero(m, dk * dk)) continue;
      gemm_f32(p.backward, false, dk, dv, dk, 1.0F, m, dk, before, dv, 1.0F, state, dv);
    }
  });
}

}  // namespace

void register_gated_delta_rule_summary(KernelTable& table) {
  table.gated_delta_rule_summary = summary;
  table.gated_delta_rule_adjoint_summary = adjoint_summary;
  table.gated_delta_rule_fold = fold;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
