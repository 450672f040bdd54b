#include <cmath>

#include "lathe/kernels/access.h"
#include "lathe/kernels/adamw.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

template <typename T>
void step(const AdamWParams& params, int64_t n, const T* grad, T* m, T* v, T* master, BFloat16* weight) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = grad[i] * T(params.grad_scale);
    m[i] = T(params.beta1) * m[i] + T(1 - params.beta1) * g;
    v[i] = T(params.beta2) * v[i] + T(1 - params.beta2) * g * g;
    const T direction = (m[i] / T(params.bias1)) / (std::sqrt(v[i] / T(params.bias2)) + T(params.eps));
    master[i] -= T(params.lr) * (direction + T(params.weight_decay) * master[i]);
    if (weight != nullptr) weight[i] = to_bfloat16(static_cast<float>(master[i]));
  }
}

void adamw(Queue& /*queue*/, const AdamWParams& params, ConstView grad, View m, View v, View master,
           View weight) {
  check_shape("adamw", "m", m, grad.shape);
  check_shape("adamw", "v", v, grad.shape);
  check_shape("adamw", "master", master, grad.shape);
  if (!weight.empty()) check_shape("adamw", "weight", weight, grad.shape);
  with_float_type(grad.dtype, [&](auto zero) {
    using T = decltype(zero);
    step<T>(params, grad.size(), elements<T>(grad), elements<T>(m), elements<T>(v), elements<T>(master),
            optional_elements<BFloat16>(weight));
  });
}

}  // namespace

void register_adamw(KernelTable& table) {
  table.adamw = adamw;
}

}  // namespace lathe::ref
