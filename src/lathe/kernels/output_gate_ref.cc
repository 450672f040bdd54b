#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/output_gate.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

void output_gate_forward(Queue& /*queue*/, ConstView o, ConstView q_proj, View a) {
  const int64_t dim = o.dim(2);
  check_shape("output_gate_forward", "q_proj", q_proj, Shape{o.dim(0), o.dim(1), 2 * dim});
  check_shape("output_gate_forward", "a", a, o.shape);
  with_float_type(o.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = 0; row < o.dim(0) * o.dim(1); ++row) {
      const T* gate = elements<T>(q_proj) + row * 2 * dim + dim;
      for (int64_t c = 0; c < dim; ++c) {
        elements<T>(a)[row * dim + c] = elements<T>(o)[row * dim + c] * sigmoid(gate[c]);
      }
    }
  });
}

void output_gate_backward(Queue& /*queue*/, ConstView da, ConstView o, ConstView q_proj, View d_o,
                          View dq_proj) {
  const int64_t dim = o.dim(2);
  check_shape("output_gate_backward", "da", da, o.shape);
  check_shape("output_gate_backward", "q_proj", q_proj, Shape{o.dim(0), o.dim(1), 2 * dim});
  check_shape("output_gate_backward", "d_o", d_o, o.shape);
  check_shape("output_gate_backward", "dq_proj", dq_proj, q_proj.shape);
  with_float_type(o.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = 0; row < o.dim(0) * o.dim(1); ++row) {
      const int64_t gate = row * 2 * dim + dim;
      for (int64_t c = 0; c < dim; ++c) {
        const T s = sigmoid(elements<T>(q_proj)[gate + c]);
        const T grad = elements<T>(da)[row * dim + c];
        elements<T>(dq_proj)[gate + c] = grad * elements<T>(o)[row * dim + c] * s * (T(1) - s);
        elements<T>(d_o)[row * dim + c] = grad * s;
      }
    }
  });
}

}  // namespace

void register_output_gate(KernelTable& table) {
  table.output_gate_forward = output_gate_forward;
  table.output_gate_backward = output_gate_backward;
}

}  // namespace lathe::ref
