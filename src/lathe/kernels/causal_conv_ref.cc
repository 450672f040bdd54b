#include <cmath>

#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

// One row, seen as [x_tail | x]: position 0 is the row's first token, positions down to -(taps - 1) are the
// tail.
template <typename T>
struct ConvRow {
  const CausalConvParams& params;
  const T* x;
  const T* w;
  const int32_t* segments;
  const T* tail;  // nullptr: nothing before the row
  const int32_t* tail_segments;

  ConvRow(const CausalConvParams& p, int64_t row, ConstView x_view, ConstView w_view, ConstView segments_view,
          ConstView tail_view, ConstView tail_segments_view)
      : params(p),
        x(elements<T>(x_view) + row * p.tokens * p.channels),
        w(elements<T>(w_view)),
        segments(elements<int32_t>(segments_view) + row * p.tokens),
        tail(optional_elements<T>(tail_view)),
        tail_segments(optional_elements<int32_t>(tail_segments_view)) {
    if (tail == nullptr) return;
    tail += row * reach() * p.channels;
    tail_segments += row * reach();
  }

  [[nodiscard]] int64_t reach() const { return params.taps - 1; }
  [[nodiscard]] bool exists(int64_t position) const {
    return position >= (tail == nullptr ? 0 : -reach()) && position < params.tokens;
  }
  [[nodiscard]] int32_t segment(int64_t position) const {
    if (!exists(position)) return 0;
    return position < 0 ? tail_segments[position + reach()] : segments[position];
  }
  [[nodiscard]] T input(int64_t position, int64_t c) const {
    return position < 0 ? tail[(position + reach()) * params.channels + c]
                        : x[position * params.channels + c];
  }
  // Does the output at token t use the input at `position`?
  [[nodiscard]] bool uses(int64_t t, int64_t position) const {
    return segments[t] != 0 && segment(position) == segments[t];
  }
  [[nodiscard]] T u(int64_t t, int64_t c) const {
    T sum = 0;
    for (int64_t j = 0; j < params.taps; ++j) {
      if (uses(t, t - reach() + j)) sum += w[c * params.taps + j] * input(t - reach() + j, c);
    }
    return sum;
  }
};

template <typename T>
void forward(const CausalConvParams& params, ConstView x, ConstView w, ConstView segments, ConstView x_tail,
             ConstView tail_segments, View y_view) {
  T* y = elements<T>(y_view);
  for (int64_t r = 0; r < params.rows; ++r) {
    const ConvRow<T> row(params, r, x, w, segments, x_tail, tail_segments);
    for (int64_t t = 0; t < params.tokens; ++t) {
      for (int64_t c = 0; c < params.channels; ++c) {
        const T u = row.u(t, c);
        y[(r * params.tokens + t) * params.channels + c] = u / (1 + std::exp(-u));
      }
    }
  }
}

template <typename T>
void zero(View view) {
  for (int64_t i = 0; i < view.size(); ++i) elements<T>(view)[i] = 0;
}

template <typename T>
void backward(const CausalConvParams& params, ConstView dy_view, ConstView x, ConstView w, ConstView segments,
              ConstView x_tail, ConstView tail_segments, View dx_view, View dw_view, View dx_tail_view) {
  zero<T>(dx_view);
  if (!dx_tail_view.empty()) zero<T>(dx_tail_view);
  const T* dy = elements<T>(dy_view);
  T* dx = elements<T>(dx_view);
  T* dw = optional_elements<T>(dw_view);
  T* dx_tail = optional_elements<T>(dx_tail_view);
  for (int64_t r = 0; r < params.rows; ++r) {
    const ConvRow<T> row(params, r, x, w, segments, x_tail, tail_segments);
    for (int64_t t = 0; t < params.tokens; ++t) {
      if (row.segments[t] == 0) continue;
      for (int64_t c = 0; c < params.channels; ++c) {
        const T u = row.u(t, c);
        const T s = 1 / (1 + std::exp(-u));
        const T du = dy[(r * params.tokens + t) * params.channels + c] * s * (1 + u * (1 - s));
        for (int64_t j = 0; j < params.taps; ++j) {
          const int64_t position = t - row.reach() + j;
          if (!row.uses(t, position)) continue;
          const T gradient = row.w[c * params.taps + j] * du;
          if (position >= 0) {
            dx[(r * params.tokens + position) * params.channels + c] += gradient;
          } else if (dx_tail != nullptr) {
            dx_tail[(r * row.reach() + position + row.reach()) * params.channels + c] += gradient;
          }
          if (dw != nullptr) dw[c * params.taps + j] += row.input(position, c) * du;
        }
      }
    }
  }
}

template <typename T>
void next_tail(const CausalConvParams& params, ConstView x, ConstView segments, ConstView x_tail,
               ConstView tail_segments, View out_view, View out_segments_view) {
  T* out = elements<T>(out_view);
  auto* out_segments = elements<int32_t>(out_segments_view);
  for (int64_t r = 0; r < params.rows; ++r) {
    const ConvRow<T> row(params, r, x, x, segments, x_tail, tail_segments);
    for (int64_t i = 0; i < row.reach(); ++i) {
      const int64_t position = params.tokens - row.reach() + i;
      out_segments[r * row.reach() + i] = row.segment(position);
      for (int64_t c = 0; c < params.channels; ++c) {
        out[(r * row.reach() + i) * params.channels + c] = row.exists(position) ? row.input(position, c) : 0;
      }
    }
  }
}

void causal_conv_forward(Queue& /*queue*/, const CausalConvParams& params, ConstView x, ConstView w,
                         ConstView segments, ConstView x_tail, ConstView tail_segments, View y) {
  const auto run = x.dtype == DType::kF64 ? forward<double> : forward<float>;
  run(params, x, w, segments, x_tail, tail_segments, y);
}

void causal_conv_backward(Queue& /*queue*/, const CausalConvParams& params, ConstView dy, ConstView x,
                          ConstView w, ConstView segments, ConstView x_tail, ConstView tail_segments, View dx,
                          View dw, View dx_tail, View /*scratch*/) {
  const auto run = x.dtype == DType::kF64 ? backward<double> : backward<float>;
  run(params, dy, x, w, segments, x_tail, tail_segments, dx, dw, dx_tail);
}

void causal_conv_tail(Queue& /*queue*/, const CausalConvParams& params, ConstView x, ConstView segments,
                      ConstView x_tail, ConstView tail_segments, View out, View out_segments) {
  const auto run = x.dtype == DType::kF64 ? next_tail<double> : next_tail<float>;
  run(params, x, segments, x_tail, tail_segments, out, out_segments);
}

}  // namespace

void register_causal_conv(KernelTable& table) {
  table.causal_conv_forward = causal_conv_forward;
  table.causal_conv_backward = causal_conv_backward;
  table.causal_conv_tail = causal_conv_tail;
}

}  // namespace lathe::ref
