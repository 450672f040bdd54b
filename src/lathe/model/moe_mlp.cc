// Mixture of experts: router, ragged sort by expert, grouped SwiGLU, weighted combine; optional shared expert with a
// sigmoid gate. Dropless: the row buffers hold every (token, slot) pair.
#include "lathe/model/decoder.h"

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
  const int64_t slots = tokens * config.num_experts_per_tok;
  const Shape choice{tokens, config.num_experts_per_tok};

  // Router products are f32 in backward too: they are small.
  const ConstView router = weights[ParameterRole::kRouter];
  saved.logits = device.activation(Shape{tokens, config.num_experts}, "moe.logits");
  device.kernels.matmul(queue, {.trans_b = true}, x, router, saved.logits);
  saved.expert = device.indices(choice, "moe.expert");
  saved.weight = device.activation(choice, "moe.weight");
  device.kernels.router_forward(queue, router_params(config), saved.logits,
                                context.options.exclude_padding_from_routing ? batch.segments : ConstView(),
                                forced, saved.expert, saved.weight);
  saved.offsets = device.indices(Shape{config.num_experts + 1}, "moe.offsets");
  saved.slot_of_row = device.indices(Shape{slots}, "moe.slot_of_row");
  saved.row_of_slot = device.indices(choice, "moe.row_of_slot");
  device.kernels.moe_sort(queue, {.experts = config.num_experts, .first = 0, .count = config.num_experts},
                          saved.expert, saved.offsets, saved.slot_of_row, saved.row_of_slot, {});

  saved.rows = device.activation(Shape{slots, config.hidden_size}, "moe.rows");
  device.kernels.moe_gather(queue, config.num_experts_per_tok, x, saved.slot_of_row, saved.offsets,
                            saved.rows);
  saved.gate_up = device.activation(Shape{slots, 2 * config.moe_intermediate_size}, "moe.gate_up");
  const GroupedMatmulParams product{.trans_w = true};
  device.kernels.grouped_matmul(queue, product, saved.rows, weights[ParameterRole::kExpertsGateUp],
                                saved.offsets, saved.gate_up);
  Tensor out;
  if (output == MlpOutput::kWanted) {
    out = device.activation(Shape{tokens, config.hidden_size}, "mlp");
    Tensor h = device.activation(Shape{slots, config.moe_intermediate_size}, "moe.h");
    device.kernels.swiglu_forward(queue, saved.gate_up, saved.offsets, h);
    Tensor y = device.activation(Shape{slots, config.hidden_size}, "moe.expert_out");
    device.kernels.grouped_matmul(queue, product, h, weights[ParameterRole::kExpertsDown], saved.offsets, y);
    device.kernels.moe_combine(queue, y, saved.weight, saved.row_of_slot, out);
  }
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
  const int64_t slots = tokens * config.num_experts_per_tok;
  const int64_t width = config.moe_intermediate_size;
  const GroupedMatmulParams input_gradient{.trans_w = false, .compute = context.options.compute};

  Tensor d_gate_up = device.activation(Shape{slots, 2 * width}, "moe.dgate_up");
  Tensor d_weight = device.activation(Shape{tokens, config.num_experts_per_tok}, "moe.dweight");
  device.kernels.fill(queue, 0, d_weight);  // slots that are not routed have no row to write it
  {
    Tensor dy_rows = device.activation(Shape{slots, config.hidden_size}, "moe.dexpert_out");
    device.kernels.moe_gather(queue, config.num_experts_per_tok, dy, saved.slot_of_row, saved.offsets,
                              dy_rows);
    Tensor weighted_h = device.activation(Shape{slots, width}, "moe.weighted_h");
    {
      Tensor dhp = device.activation(Shape{slots, width}, "moe.dh");
      device.kernels.grouped_matmul(queue, input_gradient, dy_rows, weights[ParameterRole::kExpertsDown],
                                    saved.offsets, dhp);
      device.kernels.weighted_swiglu_backward(queue, dhp, saved.gate_up, saved.weight.view().reshape({slots}),
                                              saved.slot_of_row, saved.offsets, d_gate_up,
                                              d_weight.view().reshape({slots}), weighted_h);
    }
    if (const View target = store.target(ParameterRole::kExpertsDown, layer); !target.empty()) {
      device.kernels.grouped_matmul_weight_gradient(queue, {.compute = context.options.compute}, dy_rows,
                                                    weighted_h, saved.offsets, target);
    }
  }
  saved.gate_up.reset();
  if (const View target = store.target(ParameterRole::kExpertsGateUp, layer); !target.empty()) {
    device.kernels.grouped_matmul_weight_gradient(queue, {.compute = context.options.compute}, d_gate_up,
                                                  saved.rows, saved.offsets, target);
  }
  saved.rows.reset();
  Tensor dx = device.activation(Shape{tokens, config.hidden_size}, "mlp.dx");
  {
    Tensor d_rows = device.activation(Shape{slots, config.hidden_size}, "moe.drows");
    device.kernels.grouped_matmul(queue, input_gradient, d_gate_up, weights[ParameterRole::kExpertsGateUp],
                                  saved.offsets, d_rows);
    device.kernels.moe_combine(queue, d_rows, {}, saved.row_of_slot, dx);
  }
  d_gate_up.reset();

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
