// Mixture of experts: router, the routed experts (moe_ring.h), optional shared expert with a sigmoid gate.
#include "lathe/model/decoder.h"
#include "lathe/model/moe_ring.h"

namespace lathe {
namespace {

RouterParams router_params(const ModelConfig& config) {
  return {
      .experts = config.num_experts, .top_k = config.num_experts_per_tok, .norm_topk = config.norm_topk_prob};
}

// out: added to; empty when only what backward needs is wanted.
void shared_forward(ModelContext& context, const GatheredWeights& weights, ConstView x, MoeSaved& saved,
                    View out) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const int64_t tokens = x.dim(0);
  saved.shared_gate_up =
      linear_forward(context, x, weights[ParameterRole::kSharedGateUp], "moe.shared_gate_up");
  saved.shared_weight = linear_forward(context, x, weights[ParameterRole::kSharedGate], "moe.shared_weight");
  device.kernels.sigmoid_forward(queue, saved.shared_weight, saved.shared_weight);
  if (out.empty()) return;
  Tensor h = device.activation(Shape{tokens, saved.shared_gate_up.view().dim(1) / 2}, "moe.shared_h");
  device.kernels.swiglu_forward(queue, saved.shared_gate_up, {}, h);
  Tensor y = linear_forward(context, h, weights[ParameterRole::kSharedDown], "moe.shared");
  device.kernels.add_scaled_rows(queue, y, saved.shared_weight.view().reshape({tokens}), out);
}

void shared_backward(ModelContext& context, const GatheredWeights& weights, int layer, ConstView x,
                     MoeSaved& saved, ConstView dy, View dx) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  ParameterStore& store = context.store;
  const int64_t tokens = x.dim(0);
  const View gate_up = saved.shared_gate_up;
  const View weight = saved.shared_weight.view().reshape({tokens});
  Tensor d_gate_up = device.activation(gate_up.shape, "moe.shared_dgate_up");
  Tensor d_weight = device.activation(Shape{tokens}, "moe.shared_dweight");
  {
    Tensor dhp = linear_input_gradient(context, dy, weights[ParameterRole::kSharedDown], "moe.shared_dh");
    Tensor weighted_h = device.activation(Shape{tokens, gate_up.dim(1) / 2}, "moe.shared_weighted_h");
    device.kernels.weighted_swiglu_backward(queue, dhp, gate_up, weight, {}, {}, d_gate_up, d_weight,
                                            weighted_h);
    linear_weight_gradient(context, dy, weighted_h, store.product_target(ParameterRole::kSharedDown, layer));
  }
  device.kernels.sigmoid_backward(queue, d_weight, weight, d_weight);
  const View d_pre = d_weight.view().reshape({tokens, 1});
  linear_weight_gradient(context, d_pre, x, store.product_target(ParameterRole::kSharedGate, layer));
  linear_weight_gradient(context, d_gate_up, x, store.product_target(ParameterRole::kSharedGateUp, layer));
  add_linear_input_gradient(context, d_gate_up, weights[ParameterRole::kSharedGateUp], dx);
  add_linear_input_gradient(context, d_pre, weights[ParameterRole::kSharedGate], dx);
  saved.shared_gate_up.reset();
}

}  // namespace

Tensor moe_forward(ModelContext& context, const BatchView& batch, const GatheredWeights& weights, ConstView x,
                   ConstView forced, MoeSaved& saved, MlpOutput output) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = context.config;
  const int64_t tokens = x.dim(0);
  const Shape choice{tokens, config.num_experts_per_tok};
  saved.rows = batch.rows;

  // Router products are f32 in backward too: they are small.
  const ConstView router = weights[ParameterRole::kRouter];
  saved.logits = device.activation(Shape{tokens, config.num_experts}, "moe.logits");
  device.kernels.matmul(queue, {.trans_b = true}, x, router, saved.logits);
  saved.expert = device.indices(choice, "moe.expert");
  saved.weight = device.activation(choice, "moe.weight");
  device.kernels.router_forward(queue, router_params(config), saved.logits,
                                context.options.exclude_padding_from_routing ? batch.segments : ConstView(),
                                forced, saved.expert, saved.weight);
  Tensor out;
  if (output == MlpOutput::kWanted) out = device.activation(Shape{tokens, config.hidden_size}, "mlp");
  experts_forward(context, weights, x, saved, out);
  if (config.shared_expert_intermediate_size > 0) shared_forward(context, weights, x, saved, out);
  return out;
}

Tensor moe_backward(ModelContext& context, const GatheredWeights& weights, int layer, ConstView x,
                    MoeSaved& saved, ConstView dy) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = context.config;
  ParameterStore& store = context.store;
  const int64_t tokens = x.dim(0);

  Tensor dx = device.activation(Shape{tokens, config.hidden_size}, "mlp.dx");
  Tensor d_weight = device.activation(Shape{tokens, config.num_experts_per_tok}, "moe.dweight");
  experts_backward(context, weights, layer, saved, dy, dx, d_weight);

  Tensor d_logits = device.activation(Shape{tokens, config.num_experts}, "moe.dlogits");
  device.kernels.router_backward(queue, router_params(config), d_weight, saved.logits, saved.expert,
                                 d_logits);
  if (const GradientTarget target = store.product_target(ParameterRole::kRouter, layer); target.wanted()) {
    device.kernels.matmul(queue, {.trans_a = true, .accumulate = target.accumulate}, d_logits, x,
                          target.view);
  }
  device.kernels.matmul(queue, {.accumulate = true}, d_logits, weights[ParameterRole::kRouter], dx);
  if (config.shared_expert_intermediate_size > 0) shared_backward(context, weights, layer, x, saved, dy, dx);
  return dx;
}

}  // namespace lathe
