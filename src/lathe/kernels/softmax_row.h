// The row loops of a log-softmax, shared by log_prob_cpu.cc and fused_log_prob_cpu.cc. For *_cpu.cc files only.
// With z = x / temperature, d = z - m is one fused multiply-add of the logit, the same in forward and backward, so that the
// softmax of backward sums to one.
#pragma once

#include "lathe/kernels/simd_math.h"

namespace lathe::LATHE_ISA_NAMESPACE {

// d is not taken below this where it is multiplied by e^d = 0: it may be -infinity for finite logits.
inline constexpr float kLowestExponent = -200.0F;

// 0 is greedy sampling, whose log-probs are taken at 1.
LATHE_INLINE float inverse_temperature(float tau) {
  return tau == 0.0F ? 1.0F : 1.0F / tau;
}

struct RowMaximum {
  float value = 0;     // of the logits that are numbers
  bool finite = true;  // all logits
};
LATHE_INLINE RowMaximum maximum(const float* x, int64_t count) {
  float top = -__builtin_inff();
  float zero_or_nan = 0;
#pragma omp simd reduction(max : top) reduction(+ : zero_or_nan)
  for (int64_t v = 0; v < count; ++v) {
    top = x[v] > top ? x[v] : top;
    zero_or_nan += x[v] - x[v];
  }
  return {top, zero_or_nan == 0.0F};
}

struct RowSums {
  double exps = 0;
  double weighted = 0;  // sum e^d d
};
// Sums in f32 are no longer than this: one after the other they lose a bit of the result for some hundred terms.
inline constexpr int64_t kFloatSum = 256;
LATHE_INLINE RowSums part_sums(const float* x, int64_t count, float inverse_tau, float m) {
  RowSums sums;
  for (int64_t begin = 0; begin < count; begin += kFloatSum) {
    const int64_t end = begin + kFloatSum < count ? begin + kFloatSum : count;
    float exps = 0;
    float weighted = 0;
#pragma omp simd reduction(+ : exps, weighted)
    for (int64_t v = begin; v < end; ++v) {
      const float d = __builtin_fmaf(x[v], inverse_tau, -m);
      const float e = exp_f32(d);
      exps += e;
      weighted += e * max_of(d, kLowestExponent);
    }
    sums.exps += static_cast<double>(exps);
    sums.weighted += static_cast<double>(weighted);
  }
  return sums;
}

struct RowCotangent {
  float inverse_tau = 1;
  float m = 0;
  float sum = 1;  // of exp(z - m), over the whole row
  float g = 0;    // of the log-prob, over the temperature
  float e = 0;    // of the entropy, over the temperature
  float entropy = 0;
};
// Without the target's own part: the caller adds g there. dx may be x.
LATHE_INLINE void cotangent(const RowCotangent& r, const float* x, int64_t count, float* dx) {
  if (r.g == 0.0F && r.e == 0.0F) {
    for (int64_t v = 0; v < count; ++v) dx[v] = 0.0F;
    return;
  }
  const float inverse_sum = 1.0F / r.sum;
  if (r.e == 0.0F) {
    const float scale = -r.g * inverse_sum;
#pragma omp simd
    for (int64_t v = 0; v < count; ++v) dx[v] = exp_f32(__builtin_fmaf(x[v], r.inverse_tau, -r.m)) * scale;
    return;
  }
  const auto log_sum = static_cast<float>(__builtin_log(static_cast<double>(r.sum)));
  const float offset = r.entropy - log_sum;
#pragma omp simd
  for (int64_t v = 0; v < count; ++v) {
    const float d = __builtin_fmaf(x[v], r.inverse_tau, -r.m);
    const float p = exp_f32(d) * inverse_sum;
    dx[v] = -p * (r.g + r.e * (max_of(d, kLowestExponent) + offset));
  }
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
