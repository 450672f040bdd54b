#include <cmath>
#include <vector>

#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

// softmax(logits) over all experts.
template <typename T>
std::vector<T> probabilities(const T* logits, int64_t experts) {
  T top = logits[0];
  for (int64_t e = 1; e < experts; ++e) {
    if (logits[e] > top) top = logits[e];
  }
  std::vector<T> p(static_cast<size_t>(experts));
  T sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += p[static_cast<size_t>(e)] = std::exp(logits[e] - top);
  for (T& x : p) x /= sum;
  return p;
}

// The weights of the chosen experts. With norm_topk this is the softmax over the chosen logits alone: the
// same number, but safe where a forced expert is so unlikely that its p underflows.
template <typename T>
std::vector<T> chosen_weights(const RouterParams& params, const T* logits, const int32_t* expert) {
  std::vector<T> chosen;
  for (int64_t j = 0; j < params.top_k; ++j) chosen.push_back(logits[expert[j]]);
  if (params.norm_topk) return probabilities(chosen.data(), params.top_k);
  const std::vector<T> p = probabilities(logits, params.experts);
  for (int64_t j = 0; j < params.top_k; ++j)
    chosen[static_cast<size_t>(j)] = p[static_cast<size_t>(expert[j])];
  return chosen;
}

bool contains(const int32_t* list, int64_t size, int64_t value) {
  for (int64_t i = 0; i < size; ++i) {
    if (list[i] == value) return true;
  }
  return false;
}

bool usable(const RouterParams& params, const int32_t* forced) {
  for (int64_t j = 0; j < params.top_k; ++j) {
    if (forced[j] < 0 || forced[j] >= params.experts || contains(forced, j, forced[j])) return false;
  }
  return true;
}

template <typename T>
void choose(const RouterParams& params, const T* logits, int32_t* expert) {
  for (int64_t j = 0; j < params.top_k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < params.experts; ++e) {
      if (!contains(expert, j, e) && (best < 0 || logits[e] > logits[best])) best = e;
    }
    expert[j] = static_cast<int32_t>(best);
  }
}

template <typename T>
void forward(const RouterParams& params, ConstView logits_view, ConstView segments_view,
             ConstView forced_view, View expert_view, View weight_view) {
  const T* logits = elements<T>(logits_view);
  const auto* segments = optional_elements<int32_t>(segments_view);
  const auto* forced = optional_elements<int32_t>(forced_view);
  const int64_t k = params.top_k;
  for (int64_t t = 0; t < logits_view.dim(0); ++t) {
    int32_t* expert = elements<int32_t>(expert_view) + t * k;
    T* weight = elements<T>(weight_view) + t * k;
    if (segments != nullptr && segments[t] == 0) {
      for (int64_t j = 0; j < k; ++j) {
        expert[j] = -1;
        weight[j] = 0;
      }
      continue;
    }
    const T* row = logits + t * params.experts;
    if (forced != nullptr && usable(params, forced + t * k)) {
      for (int64_t j = 0; j < k; ++j) expert[j] = forced[t * k + j];
    } else {
      choose(params, row, expert);
    }
    const std::vector<T> w = chosen_weights(params, row, expert);
    for (int64_t j = 0; j < k; ++j) weight[j] = w[static_cast<size_t>(j)];
  }
}

template <typename T>
void backward(const RouterParams& params, ConstView dweight_view, ConstView logits_view,
              ConstView expert_view, View dlogits_view) {
  const int64_t k = params.top_k;
  for (int64_t t = 0; t < logits_view.dim(0); ++t) {
    const T* dweight = elements<T>(dweight_view) + t * k;
    const T* logits = elements<T>(logits_view) + t * params.experts;
    const auto* expert = elements<int32_t>(expert_view) + t * k;
    T* dlogits = elements<T>(dlogits_view) + t * params.experts;
    for (int64_t e = 0; e < params.experts; ++e) dlogits[e] = 0;
    if (expert[0] < 0) continue;
    const std::vector<T> w = chosen_weights(params, logits, expert);
    T mean = 0;
    for (int64_t j = 0; j < k; ++j) mean += w[static_cast<size_t>(j)] * dweight[j];
    if (!params.norm_topk) {
      const std::vector<T> p = probabilities(logits, params.experts);
      for (int64_t e = 0; e < params.experts; ++e) dlogits[e] = -p[static_cast<size_t>(e)] * mean;
      mean = 0;
    }
    for (int64_t j = 0; j < k; ++j) dlogits[expert[j]] += w[static_cast<size_t>(j)] * (dweight[j] - mean);
  }
}

void router_forward(Queue& /*queue*/, const RouterParams& params, ConstView logits, ConstView segments,
                    ConstView forced, View expert, View weight) {
  const auto run = logits.dtype == DType::kF64 ? forward<double> : forward<float>;
  run(params, logits, segments, forced, expert, weight);
}

void router_backward(Queue& /*queue*/, const RouterParams& params, ConstView dweight, ConstView logits,
                     ConstView expert, View dlogits) {
  const auto run = logits.dtype == DType::kF64 ? backward<double> : backward<float>;
  run(params, dweight, logits, expert, dlogits);
}

}  // namespace

void register_router(KernelTable& table) {
  table.router_forward = router_forward;
  table.router_backward = router_backward;
}

}  // namespace lathe::ref
