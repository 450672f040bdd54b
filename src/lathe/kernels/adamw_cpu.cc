#include "lathe/kernels/access.h"
#include "lathe/kernels/adamw.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_blocks.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

struct Pointers {
  const float* grad;
  float* m;
  float* v;
  float* master;
  BFloat16* weight;
};

template <bool kWeight>
void step(const AdamWParams& params, const Pointers& p, int64_t begin, int64_t end) {
  const float* grad = p.grad;
  float* m = p.m;
  float* v = p.v;
  float* master = p.master;
  BFloat16* weight = p.weight;
  const auto lr = static_cast<float>(params.lr);
  const auto beta1 = static_cast<float>(params.beta1);
  const auto beta2 = static_cast<float>(params.beta2);
  const auto rest1 = static_cast<float>(1 - params.beta1);
  const auto rest2 = static_cast<float>(1 - params.beta2);
  const auto eps = static_cast<float>(params.eps);
  const auto decay = static_cast<float>(params.weight_decay);
  const auto bias1 = static_cast<float>(params.bias1);
  const auto bias2 = static_cast<float>(params.bias2);
  const auto scale = static_cast<float>(params.grad_scale);
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = grad[i] * scale;
    const float new_m = beta1 * m[i] + rest1 * g;
    const float new_v = beta2 * v[i] + rest2 * (g * g);
    const float direction = (new_m / bias1) / (__builtin_sqrtf(new_v / bias2) + eps);
    const float moved = master[i] - lr * (direction + decay * master[i]);
    m[i] = new_m;
    v[i] = new_v;
    master[i] = moved;
    if constexpr (kWeight) weight[i] = to_bf16(moved);
  }
}

void adamw(Queue& queue, const AdamWParams& params, ConstView grad, View m, View v, View master,
           View weight) {
  check_shape("adamw", "m", m, grad.shape);
  check_shape("adamw", "v", v, grad.shape);
  check_shape("adamw", "master", master, grad.shape);
  if (!weight.empty()) check_shape("adamw", "weight", weight, grad.shape);
  const Pointers p{elements<float>(grad), elements<float>(m), elements<float>(v), elements<float>(master),
                   optional_elements<BFloat16>(weight)};
  for_blocks(queue, grad.size(), kElementBlock, [&](int64_t begin, int64_t end) {
    if (p.weight != nullptr) {
      step<true>(params, p, begin, end);
    } else {
      step<false>(params, p, begin, end);
    }
  });
}

}  // namespace

void register_adamw(KernelTable& table) {
  table.adamw = adamw;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
