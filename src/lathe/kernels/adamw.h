// AdamW (Loshchilov & Hutter 2019), elementwise on one tensor: g = grad grad_scale;
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
//   u = (m / bias1) / (sqrt(v / bias2) + eps) + weight_decay master;  master -= lr u.
// bias1 = 1 - beta1^t, bias2 = 1 - beta2^t of the step t (1, 2, ...), computed by the caller in f64.
// grad, m, v, master: same shape, f32 (f64 on ref). weight: the copy in storage type that the model computes with (bf16),
// rewritten from master; absent when the master is what the model uses.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

struct AdamWParams {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  double bias1 = 1;
  double bias2 = 1;
  double grad_scale = 1;
};
using AdamW = void(Queue& queue, const AdamWParams& params, ConstView grad, View m, View v, View master,
                   View weight);

}  // namespace lathe
