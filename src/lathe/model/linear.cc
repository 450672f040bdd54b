#include "lathe/model/decoder.h"

namespace lathe {
namespace {

// Rank-1 and rank-3 activations are [rows, width] to a product.
ConstView as_matrix(ConstView x, int64_t width) {
  return x.reshape(Shape{x.size() / width, width});
}

}  // namespace

Tensor linear_forward(const ModelContext& context, ConstView x, ConstView weight, const char* name) {
  const int64_t in = weight.dim(1);
  const int64_t rows = x.size() / in;
  Tensor y = context.device.activation(Shape{rows, weight.dim(0)}, name);
  context.device.kernels.matmul(*context.device.queue, {.trans_b = true}, as_matrix(x, in), weight, y);
  return y;
}

Tensor linear_input_gradient(const ModelContext& context, ConstView dy, ConstView weight, const char* name) {
  Tensor dx = context.device.activation(Shape{dy.size() / weight.dim(0), weight.dim(1)}, name);
  context.device.kernels.matmul(*context.device.queue, {.compute = context.options.compute},
                                as_matrix(dy, weight.dim(0)), weight, dx);
  return dx;
}

void add_linear_input_gradient(const ModelContext& context, ConstView dy, ConstView weight, View dx) {
  context.device.kernels.matmul(*context.device.queue,
                                {.accumulate = true, .compute = context.options.compute},
                                as_matrix(dy, weight.dim(0)), weight, dx);
}

void linear_weight_gradient(const ModelContext& context, ConstView dy, ConstView x,
                            const GradientTarget& target) {
  if (!target.wanted()) return;
  context.device.kernels.matmul(
      *context.device.queue,
      {.trans_a = true, .accumulate = target.accumulate, .compute = context.options.compute},
      as_matrix(dy, target.view.dim(0)), as_matrix(x, target.view.dim(1)), target.view);
}

}  // namespace lathe
