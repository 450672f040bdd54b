#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/output_gate.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_blocks.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

void output_gate_forward(Queue& queue, ConstView o, ConstView q_proj, View a) {
  const int64_t dim = o.dim(2);
  check_shape("output_gate_forward", "q_proj", q_proj, Shape{o.dim(0), o.dim(1), 2 * dim});
  check_shape("output_gate_forward", "a", a, o.shape);
  const float* in = elements<float>(o);
  const float* gates = elements<float>(q_proj);
  float* out = elements<float>(a);
  for_row_blocks(queue, o.dim(0) * o.dim(1), dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = in + row * dim;
      const float* gate = gates + row * 2 * dim + dim;
      float* y = out + row * dim;
#pragma omp simd
      for (int64_t c = 0; c < dim; ++c) y[c] = x[c] * sigmoid_f32(gate[c]);
    }
  });
}

void output_gate_backward(Queue& queue, ConstView da, ConstView o, ConstView q_proj, View d_o, View dq_proj) {
  const int64_t dim = o.dim(2);
  check_shape("output_gate_backward", "da", da, o.shape);
  check_shape("output_gate_backward", "q_proj", q_proj, Shape{o.dim(0), o.dim(1), 2 * dim});
  check_shape("output_gate_backward", "d_o", d_o, o.shape);
  check_shape("output_gate_backward", "dq_proj", dq_proj, q_proj.shape);
  const float* grads = elements<float>(da);
  const float* in = elements<float>(o);
  const float* gates = elements<float>(q_proj);
  float* do_out = elements<float>(d_o);
  float* dgates = elements<float>(dq_proj);
  for_row_blocks(queue, o.dim(0) * o.dim(1), dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* dy = grads + row * dim;
      const float* x = in + row * dim;
      const float* gate = gates + row * 2 * dim + dim;
      float* dx = do_out + row * dim;
      float* dgate = dgates + row * 2 * dim + dim;
#pragma omp simd
      for (int64_t c = 0; c < dim; ++c) {
        const float s = sigmoid_f32(gate[c]);
        const float dys = dy[c] * s;
        dgate[c] = dys * x[c] * (1.0F - s);
        dx[c] = dys;
      }
    }
  });
}

}  // namespace

void register_output_gate(KernelTable& table) {
  table.output_gate_forward = output_gate_forward;
  table.output_gate_backward = output_gate_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
