// SwiGLU MLP: y = W_down (silu(W_gate x) * (W_up x)).
#include "lathe/model/decoder.h"

namespace lathe {

Tensor dense_forward(ModelContext& context, const GatheredWeights& weights, ConstView x, DenseSaved& saved,
                     MlpOutput output) {
  Device& device = context.device;
  saved.gate_up = linear_forward(context, x, weights[ParameterRole::kGateUp], "mlp.gate_up");
  if (output == MlpOutput::kUnused) return {};
  Tensor h = device.activation(Shape{saved.gate_up.view().dim(0), saved.gate_up.view().dim(1) / 2}, "mlp.h");
  device.kernels.swiglu_forward(*device.queue, saved.gate_up, {}, h);
  return linear_forward(context, h, weights[ParameterRole::kDown], "mlp");
}

Tensor dense_backward(ModelContext& context, const GatheredWeights& weights, int layer, ConstView x,
                      DenseSaved& saved, ConstView dy) {
  Device& device = context.device;
  const View gate_up = saved.gate_up;
  if (const GradientTarget target = context.store.product_target(ParameterRole::kDown, layer);
      target.wanted()) {
    Tensor h = device.activation(Shape{gate_up.dim(0), gate_up.dim(1) / 2}, "mlp.h");
    device.kernels.swiglu_forward(*device.queue, gate_up, {}, h);
    linear_weight_gradient(context, dy, h, target);
  }
  Tensor d_gate_up = device.activation(gate_up.shape, "mlp.dgate_up");
  {
    Tensor dh = linear_input_gradient(context, dy, weights[ParameterRole::kDown], "mlp.dh");
    device.kernels.swiglu_backward(*device.queue, dh, gate_up, d_gate_up);
  }
  saved.gate_up.reset();
  linear_weight_gradient(context, d_gate_up, x, context.store.product_target(ParameterRole::kGateUp, layer));
  return linear_input_gradient(context, d_gate_up, weights[ParameterRole::kGateUp], "mlp.dx");
}

}  // namespace lathe
