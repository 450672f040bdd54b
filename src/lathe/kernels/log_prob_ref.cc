#include <cmath>
#include <limits>

#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/log_prob.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

// 0 is greedy sampling, whose log-probs are taken at 1.
template <typename T>
T divisor(T temperature) {
  return temperature == 0 ? T{1} : temperature;
}

template <typename T>
void forward(ConstView logits, ConstView targets, ConstView temperature, View logp, View entropy,
             View stats) {
  const int64_t tokens = logits.dim(0);
  const int64_t vocab = logits.dim(1);
  for (int64_t t = 0; t < tokens; ++t) {
    const T* const x = elements<T>(logits) + t * vocab;
    const T tau = divisor(elements<T>(temperature)[t]);
    T m = -std::numeric_limits<T>::infinity();
    bool finite = true;
    for (int64_t v = 0; v < vocab; ++v) {
      m = std::isnan(x[v]) || x[v] / tau > m ? x[v] / tau : m;
      finite = finite && std::isfinite(x[v]);
    }
    if (!std::isfinite(m)) m = 0;
    T sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(x[v] / tau - m);
    // m is taken out of lse - sum p z and of z - lse: what remains of the entropy are two terms that are not
    // negative.
    T weighted = 0;
    for (int64_t v = 0; v < vocab; ++v) weighted += std::exp(x[v] / tau - m) * (x[v] / tau - m);
    const T h = std::log(sum) - weighted / sum;
    elements<T>(logp)[t] = x[elements<int32_t>(targets)[t]] / tau - m - std::log(sum);
    elements<T>(entropy)[t] = finite ? (h < 0 ? T{0} : h) : std::numeric_limits<T>::quiet_NaN();
    elements<T>(stats)[2 * t] = m;
    elements<T>(stats)[2 * t + 1] = sum;
  }
}

template <typename T>
void backward(ConstView dlogp, ConstView dentropy, ConstView logits, ConstView targets, ConstView temperature,
              ConstView entropy, ConstView stats, View dlogits) {
  const int64_t tokens = logits.dim(0);
  const int64_t vocab = logits.dim(1);
  const T* const dh = optional_elements<T>(dentropy);
  for (int64_t t = 0; t < tokens; ++t) {
    const T* const x = elements<T>(logits) + t * vocab;
    T* const dx = elements<T>(dlogits) + t * vocab;
    const T g = elements<T>(dlogp)[t];
    const T e = dh == nullptr ? T{0} : dh[t];
    const T tau = divisor(elements<T>(temperature)[t]);
    const T m = elements<T>(stats)[2 * t];
    const T sum = elements<T>(stats)[2 * t + 1];
    for (int64_t v = 0; v < vocab; ++v) {
      if (g == 0 && e == 0) {
        dx[v] = 0;
        continue;
      }
      const T d = x[v] / tau - m;
      const T p = std::exp(d) / sum;
      T dz = g * ((v == elements<int32_t>(targets)[t] ? T{1} : T{0}) - p);
      if (e != 0) dz -= e * p * (d - std::log(sum) + elements<T>(entropy)[t]);
      dx[v] = dz / tau;
    }
  }
}

void check_log_prob(ConstView logits, ConstView targets, ConstView temperature, ConstView stats) {
  const int64_t tokens = logits.dim(0);
  check_shape("log_prob", "targets", targets, {tokens});
  check_shape("log_prob", "temperature", temperature, {tokens});
  check_shape("log_prob", "stats", stats, {tokens, 2});
  const int32_t* const y = elements<int32_t>(targets);
  for (int64_t t = 0; t < tokens; ++t) {
    LATHE_CHECK(y[t] >= 0 && y[t] < logits.dim(1), "target {} of {}", y[t], logits.dim(1));
  }
}

void log_prob_forward(Queue& /*queue*/, ConstView logits, ConstView targets, ConstView temperature, View logp,
                      View entropy, View stats) {
  check_log_prob(logits, targets, temperature, stats);
  check_shape("log_prob", "logp", logp, targets.shape);
  check_shape("log_prob", "entropy", entropy, targets.shape);
  if (logits.dtype == DType::kF64) {
    forward<double>(logits, targets, temperature, logp, entropy, stats);
  } else {
    forward<float>(logits, targets, temperature, logp, entropy, stats);
  }
}

void log_prob_backward(Queue& /*queue*/, ConstView dlogp, ConstView dentropy, ConstView logits,
                       ConstView targets, ConstView temperature, ConstView entropy, ConstView stats,
                       View dlogits) {
  check_log_prob(logits, targets, temperature, stats);
  check_shape("log_prob", "dlogp", dlogp, targets.shape);
  check_shape("log_prob", "dlogits", dlogits, logits.shape);
  if (logits.dtype == DType::kF64) {
    backward<double>(dlogp, dentropy, logits, targets, temperature, entropy, stats, dlogits);
  } else {
    backward<float>(dlogp, dentropy, logits, targets, temperature, entropy, stats, dlogits);
  }
}

}  // namespace

void register_log_prob(KernelTable& table) {
  table.log_prob_forward = log_prob_forward;
  table.log_prob_backward = log_prob_backward;
}

}  // namespace lathe::ref
