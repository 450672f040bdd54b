#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_math.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

constexpr int64_t kTokenBlock = 16;

// p = exp(logits - max) / sum; returns nothing else because every weight is a ratio of two of these.
void softmax(const float* __restrict logits, int64_t size, float* __restrict p) {
  float top = logits[0];
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < size; ++i) top = logits[i] > top ? logits[i] : top;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    p[i] = exp_f32(logits[i] - top);
    sum += p[i];
  }
  const float scale = 1.0F / sum;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) p[i] *= scale;
}

// weight_j of the chosen experts; p: scratch of `experts` elements, holds softmax(logits) afterwards unless
// norm_topk. With norm_topk the weights are the softmax over the chosen logits alone: the same number, but
// safe where a forced expert is so unlikely that its p underflows.
void chosen_weights(const RouterParams& params, const float* logits, const int32_t* expert, float* p,
                    float* weight) {
  if (params.norm_topk) {
    for (int64_t j = 0; j < params.top_k; ++j) p[j] = logits[expert[j]];
    softmax(p, params.top_k, weight);
  } else {
    softmax(logits, params.experts, p);
    for (int64_t j = 0; j < params.top_k; ++j) weight[j] = p[expert[j]];
  }
}

// In range and distinct.
bool usable(const RouterParams& params, const int32_t* forced) {
  for (int64_t j = 0; j < params.top_k; ++j) {
    if (forced[j] < 0 || forced[j] >= params.experts) return false;
    for (int64_t i = 0; i < j; ++i) {
      if (forced[i] == forced[j]) return false;
    }
  }
  return true;
}

// Keeps the best so far in order; an equal logit does not pass an earlier one, so ties go to the lowest
// index.
void choose(const RouterParams& params, const float* logits, int32_t* expert) {
  int64_t count = 0;
  for (int64_t e = 0; e < params.experts; ++e) {
    const float x = logits[e];
    if (count == params.top_k && !(x > logits[expert[count - 1]])) continue;
    int64_t at = count < params.top_k ? count++ : count - 1;
    for (; at > 0 && x > logits[expert[at - 1]]; --at) expert[at] = expert[at - 1];
    expert[at] = static_cast<int32_t>(e);
  }
}

void check_sizes(const char* op, const RouterParams& params) {
  LATHE_CHECK(params.top_k >= 1 && params.top_k <= params.experts, "{}: {} of {} experts", op, params.top_k,
              params.experts);
  // Two rows of `experts` numbers per thread.
  LATHE_CHECK(params.experts * 8 <= Queue::kThreadWorkspaceBytes, "{}: {} experts", op, params.experts);
}

template <typename Fn>
void for_each_token(Queue& queue, int64_t tokens, const Fn& fn) {
  parallel_for(queue, ceil_div(tokens, kTokenBlock), [&](int64_t block, int thread) {
    auto* scratch = reinterpret_cast<float*>(queue.thread_workspace(thread));
    const int64_t end = min_of((block + 1) * kTokenBlock, tokens);
    for (int64_t t = block * kTokenBlock; t < end; ++t) fn(t, scratch);
  });
}

void router_forward(Queue& queue, const RouterParams& params, ConstView logits_view, ConstView segments_view,
                    ConstView forced_view, View expert_view, View weight_view) {
  const int64_t tokens = logits_view.dim(0);
  const int64_t k = params.top_k;
  check_sizes("router_forward", params);
  check_shape("router_forward", "logits", logits_view, {tokens, params.experts});
  check_shape("router_forward", "expert", expert_view, {tokens, k});
  check_shape("router_forward", "weight", weight_view, {tokens, k});
  const auto* logits = elements<float>(logits_view);
  const auto* segments = optional_elements<int32_t>(segments_view);
  const auto* forced = optional_elements<int32_t>(forced_view);
  auto* experts = elements<int32_t>(expert_view);
  auto* weights = elements<float>(weight_view);
  for_each_token(queue, tokens, [&](int64_t t, float* scratch) {
    int32_t* expert = experts + t * k;
    float* weight = weights + t * k;
    if (segments != nullptr && segments[t] == 0) {
      for (int64_t j = 0; j < k; ++j) {
        expert[j] = -1;
        weight[j] = 0;
      }
      return;
    }
    const float* row = logits + t * params.experts;
    if (forced != nullptr && usable(params, forced + t * k)) {
      for (int64_t j = 0; j < k; ++j) expert[j] = forced[t * k + j];
    } else {
      choose(params, row, expert);
    }
    chosen_weights(params, row, expert, scratch, weight);
  });
}

void router_backward(Queue& queue, const RouterParams& params, ConstView dweight_view, ConstView logits_view,
                     ConstView expert_view, View dlogits_view) {
  const int64_t tokens = logits_view.dim(0);
  const int64_t k = params.top_k;
  check_sizes("router_backward", params);
  check_shape("router_backward", "dweight", dweight_view, {tokens, k});
  check_shape("router_backward", "expert", expert_view, {tokens, k});
  check_shape("router_backward", "dlogits", dlogits_view, {tokens, params.experts});
  const auto* dweights = elements<float>(dweight_view);
  const auto* logits = elements<float>(logits_view);
  const auto* experts = elements<int32_t>(expert_view);
  auto* dlogits = elements<float>(dlogits_view);
  for_each_token(queue, tokens, [&](int64_t t, float* p) {
    const float* dweight = dweights + t * k;
    const int32_t* expert = experts + t * k;
    float* out = dlogits + t * params.experts;
    if (expert[0] < 0) {
      for (int64_t e = 0; e < params.experts; ++e) out[e] = 0;
      return;
    }
    float* weight = p + params.experts;
    chosen_weights(params, logits + t * params.experts, expert, p, weight);
    float mean = 0;
    for (int64_t j = 0; j < k; ++j) mean += weight[j] * dweight[j];
    if (params.norm_topk) {
      for (int64_t e = 0; e < params.experts; ++e) out[e] = 0;
      for (int64_t j = 0; j < k; ++j) out[expert[j]] = weight[j] * (dweight[j] - mean);
    } else {
#pragma omp simd
      for (int64_t e = 0; e < params.experts; ++e) out[e] = -p[e] * mean;
      for (int64_t j = 0; j < k; ++j) out[expert[j]] += weight[j] * dweight[j];
    }
  });
}

}  // namespace

void register_router(KernelTable& table) {
  table.router_forward = router_forward;
  table.router_backward = router_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
