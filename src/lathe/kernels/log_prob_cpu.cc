#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/log_prob.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/softmax_row.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// Elements of a partial sum in f32; the partial sums are added in f64.
constexpr int64_t kBlock = 2048;
// Elements that a task should at least have.
constexpr int64_t kTaskElements = 16384;
LATHE_INLINE RowSums sums(const float* x, int64_t vocab, float inverse_tau, float m) {
  RowSums out;
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const RowSums part = part_sums(x + begin, min_of(kBlock, vocab - begin), inverse_tau, m);
    out.exps += part.exps;
    out.weighted += part.weighted;
  }
  return out;
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
    const float inverse_tau = inverse_temperature(tau[t]);
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
    const float inverse_tau = inverse_temperature(tau[t]);
    const float g = dlp[t] * inverse_tau;
    const float e = dh == nullptr ? 0.0F : dh[t] * inverse_tau;
    cotangent({.inverse_tau = inverse_tau,
               .m = saved[2 * t],
               .sum = saved[2 * t + 1],
               .g = g,
               .e = e,
               .entropy = h == nullptr ? 0.0F : h[t]},
              x, vocab, dx);
    if (g == 0.0F && e == 0.0F) return;
    dx[y[t]] += g;
  });
}

}  // namespace

void register_log_prob(KernelTable& table) {
  table.log_prob_forward = log_prob_forward;
  table.log_prob_backward = log_prob_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
