#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/log_prob.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_math.h"

// With z = x / temperature, d = z - m is one fused multiply-add of the logit, the same in forward and
// backward, so that the softmax of backward sums to one.
namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// Elements of a partial sum in f32; the partial sums are added in f64.
constexpr int64_t kBlock = 2048;
// Elements that a task should at least have.
constexpr int64_t kTaskElements = 16384;
// d is not taken below this where it is multiplied by e^d = 0: it may be -infinity for finite logits.
constexpr float kLowestExponent = -200.0F;

struct RowMaximum {
  float value = 0;     // of the logits that are numbers
  bool finite = true;  // all logits
};
LATHE_INLINE RowMaximum maximum(const float* x, int64_t vocab) {
  float top = -__builtin_inff();
  float zero_or_nan = 0;
#pragma omp simd reduction(max : top) reduction(+ : zero_or_nan)
  for (int64_t v = 0; v < vocab; ++v) {
    top = x[v] > top ? x[v] : top;
    zero_or_nan += x[v] - x[v];
  }
  return {top, zero_or_nan == 0.0F};
}

struct RowSums {
  double exps = 0;
  double weighted = 0;  // sum e^d d
};
LATHE_INLINE RowSums sums(const float* x, int64_t vocab, float inverse_tau, float m) {
  RowSums out;
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const int64_t end = min_of(begin + kBlock, vocab);
    float exps = 0;
    float weighted = 0;
#pragma omp simd reduction(+ : exps, weighted)
    for (int64_t v = begin; v < end; ++v) {
      const float d = __builtin_fmaf(x[v], inverse_tau, -m);
      const float e = exp_f32(d);
      exps += e;
      weighted += e * max_of(d, kLowestExponent);
    }
    out.exps += static_cast<double>(exps);
    out.weighted += static_cast<double>(weighted);
  }
  return out;
}

// dx may be x.
LATHE_INLINE void cotangent_of_logp(const float* x, int64_t vocab, float inverse_tau, float m,
                                    float inverse_sum, float g, float* dx) {
  const float scale = -g * inverse_sum;
#pragma omp simd
  for (int64_t v = 0; v < vocab; ++v) dx[v] = exp_f32(__builtin_fmaf(x[v], inverse_tau, -m)) * scale;
}
LATHE_INLINE void cotangent_of_both(const float* x, int64_t vocab, float inverse_tau, float m,
                                    float inverse_sum, float g, float e, float entropy_minus_log_sum,
                                    float* dx) {
#pragma omp simd
  for (int64_t v = 0; v < vocab; ++v) {
    const float d = __builtin_fmaf(x[v], inverse_tau, -m);
    const float p = exp_f32(d) * inverse_sum;
    dx[v] = -p * (g + e * (max_of(d, kLowestExponent) + entropy_minus_log_sum));
  }
}

LATHE_INLINE void check_log_prob(ConstView logits, ConstView targets, ConstView temperature,
                                 ConstView stats) {
  const int64_t tokens = logits.dim(0);
  check_shape("log_prob", "targets", targets, {tokens});
  check_shape("log_prob", "temperature", temperature, {tokens});
  check_shape("log_prob", "stats", stats, {tokens, 2});
  const int32_t* const y = elements<int32_t>(targets);
  for (int64_t t = 0; t < tokens; ++t) {
    LATHE_CHECK(y[t] >= 0 && y[t] < logits.dim(1), "target {} of {}", y[t], logits.dim(1));
  }
}

// row(t) for every token, several short rows to a task.
template <typename Row>
LATHE_INLINE void for_rows(Queue& queue, int64_t tokens, int64_t vocab, const Row& row) {
  const int64_t rows = ceil_div(kTaskElements, max_of(vocab, int64_t{1}));
  parallel_for(queue, ceil_div(tokens, rows), [&](int64_t index) {
    for (int64_t t = index * rows; t < min_of(tokens, (index + 1) * rows); ++t) row(t);
  });
}

void log_prob_forward(Queue& queue, ConstView logits, ConstView targets, ConstView temperature, View logp,
                      View entropy, View stats) {
  check_log_prob(logits, targets, temperature, stats);
  check_shape("log_prob", "logp", logp, targets.shape);
  check_shape("log_prob", "entropy", entropy, targets.shape);
  const int64_t vocab = logits.dim(1);
  const float* const all = elements<float>(logits);
  const int32_t* const y = elements<int32_t>(targets);
  const float* const tau = elements<float>(temperature);
  float* const lp = elements<float>(logp);
  float* const h = elements<float>(entropy);
  float* const saved = elements<float>(stats);
  for_rows(queue, logits.dim(0), vocab, [=](int64_t t) {
    const float* const x = all + t * vocab;
    const float inverse_tau = 1.0F / tau[t];
    const RowMaximum top = maximum(x, vocab);
    const float scaled = top.value * inverse_tau;
    const float m = scaled - scaled == 0.0F ? scaled : 0.0F;
    const RowSums s = sums(x, vocab, inverse_tau, m);
    const double log_sum = __builtin_log(s.exps);
    const double ent = log_sum - s.weighted / s.exps;
    lp[t] = static_cast<float>(static_cast<double>(__builtin_fmaf(x[y[t]], inverse_tau, -m)) - log_sum);
    h[t] = top.finite ? static_cast<float>(ent < 0 ? 0 : ent) : __builtin_nanf("");
    saved[2 * t] = m;
    saved[2 * t + 1] = static_cast<float>(s.exps);
  });
}

void log_prob_backward(Queue& queue, ConstView dlogp, ConstView dentropy, ConstView logits, ConstView targets,
                       ConstView temperature, ConstView entropy, ConstView stats, View dlogits) {
  check_log_prob(logits, targets, temperature, stats);
  check_shape("log_prob", "dlogp", dlogp, targets.shape);
  check_shape("log_prob", "dlogits", dlogits, logits.shape);
  const int64_t vocab = logits.dim(1);
  const float* const all = elements<float>(logits);
  const int32_t* const y = elements<int32_t>(targets);
  const float* const tau = elements<float>(temperature);
  const float* const dlp = elements<float>(dlogp);
  const float* const dh = optional_elements<float>(dentropy);
  const float* const h = dh == nullptr ? nullptr : elements<float>(entropy);
  const float* const saved = elements<float>(stats);
  float* const out = elements<float>(dlogits);
  for_rows(queue, logits.dim(0), vocab, [=](int64_t t) {
    const float* const x = all + t * vocab;
    float* const dx = out + t * vocab;
    const float inverse_tau = 1.0F / tau[t];
    const float g = dlp[t] * inverse_tau;
    const float e = dh == nullptr ? 0.0F : dh[t] * inverse_tau;
    const float m = saved[2 * t];
    const float sum = saved[2 * t + 1];
    if (g == 0.0F && e == 0.0F) {
      for (int64_t v = 0; v < vocab; ++v) dx[v] = 0.0F;
      return;
    }
    if (e == 0.0F) {
      cotangent_of_logp(x, vocab, inverse_tau, m, 1.0F / sum, g, dx);
    } else {
      const auto log_sum = static_cast<float>(__builtin_log(static_cast<double>(sum)));
      cotangent_of_both(x, vocab, inverse_tau, m, 1.0F / sum, g, e, h[t] - log_sum, dx);
    }
    dx[y[t]] += g;
  });
}

}  // namespace

void register_log_prob(KernelTable& table) {
  table.log_prob_forward = log_prob_forward;
  table.log_prob_backward = log_prob_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
