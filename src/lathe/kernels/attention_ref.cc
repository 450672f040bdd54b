#include <algorithm>
#include <cmath>
#include <vector>

#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

// Where things of one (row, query head) lie.
template <typename T>
struct AttentionHead {
  const AttentionParams& params;
  int64_t row;
  int64_t head;
  const T* q;
  const T* k;
  const T* v;
  const int32_t* q_segments;
  const int32_t* kv_segments;

  AttentionHead(const AttentionParams& p, int64_t r, int64_t h, ConstView q_view, ConstView k_view,
                ConstView v_view, ConstView q_segments_view, ConstView kv_segments_view)
      : params(p),
        row(r),
        head(h),
        q(elements<T>(q_view)),
        k(elements<T>(k_view)),
        v(elements<T>(v_view)),
        q_segments(elements<int32_t>(q_segments_view) + r * p.q_tokens),
        kv_segments(elements<int32_t>(kv_segments_view) + r * p.kv_tokens) {}

  // Offset of the head's vector of query i, or of its key and value at j.
  [[nodiscard]] int64_t query(int64_t i) const {
    return ((row * params.q_tokens + i) * params.q_heads + head) * params.head_dim;
  }
  [[nodiscard]] int64_t key(int64_t j) const {
    const int64_t kv_head = head / (params.q_heads / params.kv_heads);
    return ((row * params.kv_tokens + j) * params.kv_heads + kv_head) * params.head_dim;
  }
  [[nodiscard]] bool sees(int64_t i, int64_t j) const {
    return q_segments[i] != 0 && q_segments[i] == kv_segments[j] && j <= params.q_offset + i;
  }
  [[nodiscard]] T dot(const T* a, const T* b) const {
    T sum = 0;
    for (int64_t d = 0; d < params.head_dim; ++d) sum += a[d] * b[d];
    return sum;
  }
  [[nodiscard]] T score(int64_t i, int64_t j) const {
    return static_cast<T>(params.scale) * dot(q + query(i), k + key(j));
  }
};

template <typename T>
void forward_head(const AttentionHead<T>& head, T* o, T* lse) {
  const AttentionParams& p = head.params;
  for (int64_t i = 0; i < p.q_tokens; ++i) {
    T* out = o + head.query(i);
    T& log_sum = lse[(head.row * p.q_tokens + i) * p.q_heads + head.head];
    for (int64_t d = 0; d < p.head_dim; ++d) out[d] = 0;
    log_sum = 0;
    std::vector<int64_t> keys;
    std::vector<T> scores;
    for (int64_t j = 0; j < p.kv_tokens; ++j) {
      if (!head.sees(i, j)) continue;
      keys.push_back(j);
      scores.push_back(head.score(i, j));
    }
    if (keys.empty()) continue;
    const T top = *std::max_element(scores.begin(), scores.end());
    T sum = 0;
    for (const T score : scores) sum += std::exp(score - top);
    for (size_t n = 0; n < keys.size(); ++n) {
      const T weight = std::exp(scores[n] - top) / sum;
      for (int64_t d = 0; d < p.head_dim; ++d) out[d] += weight * head.v[head.key(keys[n]) + d];
    }
    log_sum = top + std::log(sum);
  }
}

template <typename T>
void backward_head(const AttentionHead<T>& head, const T* d_o, const T* o, const T* lse, T* dq, T* dk,
                   T* dv) {
  const AttentionParams& p = head.params;
  for (int64_t i = 0; i < p.q_tokens; ++i) {
    const int64_t qi = head.query(i);
    const T log_sum = lse[(head.row * p.q_tokens + i) * p.q_heads + head.head];
    const T delta = head.dot(d_o + qi, o + qi);
    for (int64_t j = 0; j < p.kv_tokens; ++j) {
      if (!head.sees(i, j)) continue;
      const int64_t kj = head.key(j);
      const T weight = std::exp(head.score(i, j) - log_sum);
      const T ds = weight * (head.dot(d_o + qi, head.v + kj) - delta) * static_cast<T>(p.scale);
      for (int64_t d = 0; d < p.head_dim; ++d) {
        dq[qi + d] += ds * head.k[kj + d];
        dk[kj + d] += ds * head.q[qi + d];
        dv[kj + d] += weight * d_o[qi + d];
      }
    }
  }
}

template <typename T>
void forward(const AttentionParams& params, ConstView q, ConstView k, ConstView v, ConstView q_segments,
             ConstView kv_segments, View o, View lse) {
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t h = 0; h < params.q_heads; ++h) {
      const AttentionHead<T> head(params, row, h, q, k, v, q_segments, kv_segments);
      forward_head(head, elements<T>(o), elements<T>(lse));
    }
  }
}

template <typename T>
void backward(const AttentionParams& params, ConstView d_o, ConstView q, ConstView k, ConstView v,
              ConstView q_segments, ConstView kv_segments, ConstView o, ConstView lse, View dq, View dk,
              View dv) {
  for (const View gradient : {dq, dk, dv}) {
    for (int64_t i = 0; i < gradient.size(); ++i) elements<T>(gradient)[i] = 0;
  }
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t h = 0; h < params.q_heads; ++h) {
      const AttentionHead<T> head(params, row, h, q, k, v, q_segments, kv_segments);
      backward_head(head, elements<T>(d_o), elements<T>(o), elements<T>(lse), elements<T>(dq),
                    elements<T>(dk), elements<T>(dv));
    }
  }
}

void attention_forward(Queue& /*queue*/, const AttentionParams& params, ConstView q, ConstView k, ConstView v,
                       ConstView q_segments, ConstView kv_segments, View o, View lse) {
  const auto run = q.dtype == DType::kF64 ? forward<double> : forward<float>;
  run(params, q, k, v, q_segments, kv_segments, o, lse);
}

void attention_backward(Queue& /*queue*/, const AttentionParams& params, ConstView d_o, ConstView q,
                        ConstView k, ConstView v, ConstView q_segments, ConstView kv_segments, ConstView o,
                        ConstView lse, View dq, View dk, View dv, View /*scratch*/) {
  const auto run = q.dtype == DType::kF64 ? backward<double> : backward<float>;
  run(params, d_o, q, k, v, q_segments, kv_segments, o, lse, dq, dk, dv);
}

}  // namespace

void register_attention(KernelTable& table) {
  table.attention_forward = attention_forward;
  table.attention_backward = attention_backward;
}

}  // namespace lathe::ref
