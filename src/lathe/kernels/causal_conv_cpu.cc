#include <cstring>

#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_math.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// A task is a block of tokens by a block of channels; what it needs of both fits the second-level cache.
constexpr int64_t kTokens = kCausalConvTokenBlock;
constexpr int64_t kChannels = 256;
constexpr int64_t kMaxTaps = 16;

struct Workspace {
  float w[kMaxTaps][kChannels];  // transposed
  float dw[kMaxTaps][kChannels];
  float zeros[kChannels];  // what a tap reads that must not see its token
  float u[kChannels];
  float du[kTokens + kMaxTaps][kChannels];
};
static_assert(sizeof(Workspace) <= Queue::kThreadWorkspaceBytes);

struct Conv {
  int64_t tokens;
  int64_t channels;
  int64_t taps;
  int64_t reach;  // taps - 1
  const float* x;
  const float* w;
  const int32_t* segments;
  const float* tail;  // nullptr: nothing before the row
  const int32_t* tail_segments;
  int64_t token_blocks;  // of a row, at least one
  int64_t channel_blocks;

  Conv(const CausalConvParams& p, ConstView x_view, ConstView w_view, ConstView segments_view,
       ConstView tail_view, ConstView tail_segments_view)
      : tokens(p.tokens),
        channels(p.channels),
        taps(p.taps),
        reach(p.taps - 1),
        x(elements<float>(x_view)),
        w(elements<float>(w_view)),
        segments(elements<int32_t>(segments_view)),
        tail(optional_elements<float>(tail_view)),
        tail_segments(optional_elements<int32_t>(tail_segments_view)),
        token_blocks(max_of(ceil_div(p.tokens, kTokens), int64_t{1})),
        channel_blocks(ceil_div(p.channels, kChannels)) {
    LATHE_CHECK(taps >= 1 && taps <= kMaxTaps, "causal_conv: {} taps", taps);
    check_shape("causal_conv", "x", x_view, {p.rows * tokens, channels});
    check_shape("causal_conv", "w", w_view, {channels, taps});
    check_shape("causal_conv", "segments", segments_view, {p.rows * tokens});
    LATHE_CHECK(tail_view.empty() == tail_segments_view.empty(), "causal_conv: tail without its segments");
    if (tail == nullptr) return;
    check_shape("causal_conv", "x_tail", tail_view, {p.rows, reach, channels});
    check_shape("causal_conv", "tail_segments", tail_segments_view, {p.rows, reach});
  }

  // The same, with pointers at the beginning of a row. Positions of a row: 0 is its first token, the tail
  // lies before.
  [[nodiscard]] Conv at_row(int64_t row) const {
    Conv out = *this;
    out.x += row * tokens * channels;
    out.segments += row * tokens;
    if (tail == nullptr) return out;
    out.tail += row * reach * channels;
    out.tail_segments += row * reach;
    return out;
  }
  [[nodiscard]] int32_t segment(int64_t position) const {
    if (position >= tokens || (position < 0 && tail == nullptr)) return 0;
    return position < 0 ? tail_segments[position + reach] : segments[position];
  }
  // Never called for a position whose segment is 0 because nothing is there.
  [[nodiscard]] const float* input(int64_t position, int64_t c) const {
    return position < 0 ? tail + (position + reach) * channels + c : x + position * channels + c;
  }
};

struct Block {
  int64_t row;
  int64_t index;  // of the token block among those of all rows
  int64_t begin;  // tokens
  int64_t end;
  int64_t c;      // first channel
  int64_t width;  // channels

  Block(const Conv& conv, int64_t task) {
    index = task / conv.channel_blocks;
    row = index / conv.token_blocks;
    begin = index % conv.token_blocks * kTokens;
    end = min_of(begin + kTokens, conv.tokens);
    c = task % conv.channel_blocks * kChannels;
    width = min_of(kChannels, conv.channels - c);
  }
};

void prepare(const Conv& conv, const Block& block, Workspace& space) {
  for (int64_t i = 0; i < block.width; ++i) {
    space.zeros[i] = 0;
    for (int64_t j = 0; j < conv.taps; ++j) space.w[j][i] = conv.w[(block.c + i) * conv.taps + j];
  }
}

// out = sum_j w_j from_j over the channels of a block, in order of j.
void weighted_sum(const Workspace& space, int64_t taps, const float* const* from, int64_t width,
                  float* __restrict out) {
  if (taps == 4) {
    const float *x0 = from[0], *x1 = from[1], *x2 = from[2], *x3 = from[3];
    const float *w0 = space.w[0], *w1 = space.w[1], *w2 = space.w[2], *w3 = space.w[3];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i)
      out[i] = w0[i] * x0[i] + w1[i] * x1[i] + w2[i] * x2[i] + w3[i] * x3[i];
    return;
  }
  for (int64_t i = 0; i < width; ++i) out[i] = 0;
  for (int64_t j = 0; j < taps; ++j) {
    const float *x = from[j], *w = space.w[j];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[i] += w[i] * x[i];
  }
}

// space.u = u[t]; t is not padding. from: what each tap reads.
void convolve(const Conv& conv, const Block& block, int64_t t, Workspace& space, const float** from) {
  for (int64_t j = 0; j < conv.taps; ++j) {
    const int64_t position = t - conv.reach + j;
    from[j] = conv.segment(position) == conv.segments[t] ? conv.input(position, block.c) : space.zeros;
  }
  weighted_sum(space, conv.taps, from, block.width, space.u);
}

// out = sum_j w_j du[position + reach - j] over the tokens of the block that read `position`: the gradient of
// an input.
void input_gradient(const Conv& conv, const Block& block, int64_t position, const Workspace& space,
                    float* out) {
  const float* from[kMaxTaps];
  const int32_t segment = conv.segment(position);
  for (int64_t j = 0; j < conv.taps; ++j) {
    const int64_t t = position + conv.reach - j;
    const bool used = segment != 0 && t >= 0 && conv.segment(t) == segment;
    from[j] = used ? space.du[t - block.begin] : space.zeros;
  }
  weighted_sum(space, conv.taps, from, block.width, out);
}

void causal_conv_forward(Queue& queue, const CausalConvParams& params, ConstView x, ConstView w,
                         ConstView segments, ConstView x_tail, ConstView tail_segments, View y_view) {
  const Conv all(params, x, w, segments, x_tail, tail_segments);
  check_shape("causal_conv", "y", y_view, x.shape);
  auto* y = elements<float>(y_view);
  parallel_for(queue, params.rows * all.token_blocks * all.channel_blocks, [&](int64_t task, int thread) {
    auto& space = *reinterpret_cast<Workspace*>(queue.thread_workspace(thread));
    const Block block(all, task);
    const Conv conv = all.at_row(block.row);
    prepare(conv, block, space);
    const float* from[kMaxTaps];
    for (int64_t t = block.begin; t < block.end; ++t) {
      float* out = y + (block.row * conv.tokens + t) * conv.channels + block.c;
      if (conv.segments[t] == 0) {
        std::memset(out, 0, static_cast<size_t>(block.width) * sizeof(float));
        continue;
      }
      convolve(conv, block, t, space, from);
      const float* u = space.u;
#pragma omp simd
      for (int64_t i = 0; i < block.width; ++i) out[i] = silu_f32(u[i]);
    }
  });
}

// du of the tokens of the block and of the `reach` tokens after it; dw of the tokens of the block.
void token_gradients(const Conv& conv, const Block& block, const float* dy, Workspace& space) {
  std::memset(space.dw, 0, sizeof(space.dw));
  const float* from[kMaxTaps];
  for (int64_t t = block.begin; t < min_of(block.end + conv.reach, conv.tokens); ++t) {
    if (conv.segments[t] == 0) continue;  // nobody reads its du
    convolve(conv, block, t, space, from);
    const float* u = space.u;
    const float* gradient = dy + (block.row * conv.tokens + t) * conv.channels + block.c;
    float* __restrict du = space.du[t - block.begin];
#pragma omp simd
    for (int64_t i = 0; i < block.width; ++i) du[i] = gradient[i] * silu_slope_f32(u[i], sigmoid_f32(u[i]));
    if (t >= block.end) continue;
    for (int64_t j = 0; j < conv.taps; ++j) {
      const float* input = from[j];
      float* __restrict dw = space.dw[j];
#pragma omp simd
      for (int64_t i = 0; i < block.width; ++i) dw[i] += input[i] * du[i];
    }
  }
}

// dw += the sum over token blocks in order. partial: [blocks, taps, channels].
void add_weight_gradient(Queue& queue, const Conv& conv, int64_t blocks, const float* partial, float* dw) {
  parallel_for(queue, conv.channel_blocks, [&](int64_t task) {
    const int64_t end = min_of((task + 1) * kChannels, conv.channels);
    for (int64_t c = task * kChannels; c < end; ++c) {
      for (int64_t j = 0; j < conv.taps; ++j) {
        float sum = 0;
        for (int64_t b = 0; b < blocks; ++b) sum += partial[(b * conv.taps + j) * conv.channels + c];
        dw[c * conv.taps + j] += sum;
      }
    }
  });
}

void causal_conv_backward(Queue& queue, const CausalConvParams& params, ConstView dy_view, ConstView x,
                          ConstView w, ConstView segments, ConstView x_tail, ConstView tail_segments,
                          View dx_view, View dw_view, View dx_tail_view, View scratch_view) {
  const Conv all(params, x, w, segments, x_tail, tail_segments);
  check_shape("causal_conv", "dy", dy_view, x.shape);
  check_shape("causal_conv", "dx", dx_view, x.shape);
  const auto* dy = elements<float>(dy_view);
  auto* dx = elements<float>(dx_view);
  auto* dw = optional_elements<float>(dw_view);
  auto* dx_tail = optional_elements<float>(dx_tail_view);
  float* partial = nullptr;
  if (dw != nullptr) {
    check_shape("causal_conv", "dw", dw_view, w.shape);
    LATHE_CHECK(scratch_view.size() >= causal_conv_backward_scratch(params), "causal_conv: scratch of {}",
                scratch_view.size());
    partial = elements<float>(scratch_view);
  }
  if (dx_tail != nullptr) check_shape("causal_conv", "dx_tail", dx_tail_view, x_tail.shape);
  parallel_for(queue, params.rows * all.token_blocks * all.channel_blocks, [&](int64_t task, int thread) {
    auto& space = *reinterpret_cast<Workspace*>(queue.thread_workspace(thread));
    const Block block(all, task);
    const Conv conv = all.at_row(block.row);
    prepare(conv, block, space);
    token_gradients(conv, block, dy, space);
    for (int64_t t = block.begin; t < block.end; ++t) {
      float* out = dx + (block.row * conv.tokens + t) * conv.channels + block.c;
      input_gradient(conv, block, t, space, out);
    }
    if (dx_tail != nullptr && block.begin == 0) {
      for (int64_t i = 0; i < conv.reach; ++i) {
        float* out = dx_tail + (block.row * conv.reach + i) * conv.channels + block.c;
        input_gradient(conv, block, i - conv.reach, space, out);
      }
    }
    if (partial == nullptr || conv.tokens == 0) return;
    for (int64_t j = 0; j < conv.taps; ++j) {
      std::memcpy(partial + (block.index * conv.taps + j) * conv.channels + block.c, space.dw[j],
                  static_cast<size_t>(block.width) * sizeof(float));
    }
  });
  if (dw != nullptr && all.tokens > 0) {
    add_weight_gradient(queue, all, params.rows * all.token_blocks, partial, dw);
  }
}

void causal_conv_tail(Queue& queue, const CausalConvParams& params, ConstView x, ConstView segments,
                      ConstView x_tail, ConstView tail_segments, View next_view, View next_segments_view) {
  const int64_t reach = params.taps - 1;
  check_shape("causal_conv_tail", "next_tail", next_view, {params.rows, reach, params.channels});
  check_shape("causal_conv_tail", "next_tail_segments", next_segments_view, {params.rows, reach});
  const auto* in = elements<float>(x);
  const auto* ids = elements<int32_t>(segments);
  const auto* tail = optional_elements<float>(x_tail);
  const auto* tail_ids = optional_elements<int32_t>(tail_segments);
  auto* next = elements<float>(next_view);
  auto* next_ids = elements<int32_t>(next_segments_view);
  const auto bytes = static_cast<size_t>(params.channels) * sizeof(float);
  parallel_for(queue, params.rows, [&](int64_t row) {
    for (int64_t i = 0; i < reach; ++i) {
      const int64_t to = row * reach + i;
      const int64_t position = params.tokens - reach + i;
      if (position < 0 && tail == nullptr) {
        std::memset(next + to * params.channels, 0, bytes);
        next_ids[to] = 0;
        continue;
      }
      const int64_t from = position < 0 ? row * reach + position + reach : row * params.tokens + position;
      std::memcpy(next + to * params.channels, (position < 0 ? tail : in) + from * params.channels, bytes);
      next_ids[to] = (position < 0 ? tail_ids : ids)[from];
    }
  });
}

}  // namespace

void register_causal_conv(KernelTable& table) {
  table.causal_conv_forward = causal_conv_forward;
  table.causal_conv_backward = causal_conv_backward;
  table.causal_conv_tail = causal_conv_tail;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
