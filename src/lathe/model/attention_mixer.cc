// Full attention: projections, q/k norm and rotation, segment-aware causal attention, output gate, projection.
#include "lathe/model/context_attention.h"
#include "lathe/model/decoder.h"

namespace lathe {
namespace {

QkNormRopeParams rope_params(const ModelConfig& config) {
  return {.head_dim = config.head_dim,
          .rotary_dim = config.rotary_dim,
          .theta = config.rope_theta,
          .has_gate = config.attn_output_gate,
          .has_norm = config.qk_norm,
          .norm_offset = config.norm_offset,
          .norm_eps = config.rms_norm_eps};
}

}  // namespace

Tensor attention_forward(ModelContext& context, const BatchView& batch, const GatheredWeights& weights,
                         ConstView x, AttentionSaved& saved) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = context.config;
  const int64_t tokens = batch.tokens();
  const int64_t heads = config.num_attention_heads;
  const int64_t kv_heads = config.num_key_value_heads;
  const int64_t dim = config.head_dim;
  const int64_t q_width = config.attn_output_gate ? 2 * dim : dim;

  saved.q_proj = linear_forward(context, x, weights[ParameterRole::kQProj], "attention.q_proj");
  saved.k_proj = linear_forward(context, x, weights[ParameterRole::kKProj], "attention.k_proj");
  saved.v = linear_forward(context, x, weights[ParameterRole::kVProj], "attention.v");

  saved.q = device.activation(Shape{tokens, heads, dim}, "attention.q");
  saved.k = device.activation(Shape{tokens, kv_heads, dim}, "attention.k");
  if (config.qk_norm) {
    saved.q_rstd = device.activation(Shape{tokens, heads}, "attention.q_rstd");
    saved.k_rstd = device.activation(Shape{tokens, kv_heads}, "attention.k_rstd");
  }
  device.kernels.qk_norm_rope_forward(
      queue, rope_params(config), saved.q_proj.view().reshape({tokens, heads, q_width}),
      saved.k_proj.view().reshape({tokens, kv_heads, dim}), batch.positions, weights[ParameterRole::kQNorm],
      weights[ParameterRole::kKNorm], saved.q, saved.k, saved.q_rstd, saved.k_rstd);

  context_attention_forward(context, batch, saved);
  if (!config.attn_output_gate)
    return linear_forward(context, saved.o, weights[ParameterRole::kOProj], "mixer");
  Tensor gated = device.activation(Shape{tokens, heads, dim}, "attention.gated");
  device.kernels.output_gate_forward(queue, saved.o, saved.q_proj.view().reshape({tokens, heads, q_width}),
                                     gated);
  return linear_forward(context, gated, weights[ParameterRole::kOProj], "mixer");
}

Tensor attention_backward(ModelContext& context, const BatchView& batch, const GatheredWeights& weights,
                          int layer, ConstView x, AttentionSaved& saved, ConstView dy) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = context.config;
  ParameterStore& store = context.store;
  const int64_t tokens = batch.tokens();
  const int64_t heads = config.num_attention_heads;
  const int64_t kv_heads = config.num_key_value_heads;
  const int64_t dim = config.head_dim;
  const int64_t q_width = config.attn_output_gate ? 2 * dim : dim;
  const View q_proj = saved.q_proj.view().reshape({tokens, heads, q_width});

  Tensor d_o = linear_input_gradient(context, dy, weights[ParameterRole::kOProj], "attention.do");
  const View d_o_heads = d_o.view().reshape({tokens, heads, dim});
  Tensor dq_proj = device.activation(Shape{tokens, heads, q_width}, "attention.dq_proj");
  if (config.attn_output_gate) {
    Tensor gated = device.activation(Shape{tokens, heads, dim}, "attention.gated");
    device.kernels.output_gate_forward(queue, saved.o, q_proj, gated);
    linear_weight_gradient(context, dy, gated, store.product_target(ParameterRole::kOProj, layer));
    gated.reset();
    Tensor da = std::move(d_o);
    d_o = device.activation(Shape{tokens, heads, dim}, "attention.do");
    device.kernels.output_gate_backward(queue, da.view().reshape({tokens, heads, dim}), saved.o, q_proj, d_o,
                                        dq_proj);
  } else {
    linear_weight_gradient(context, dy, saved.o, store.product_target(ParameterRole::kOProj, layer));
  }

  Tensor dq = device.activation(Shape{tokens, heads, dim}, "attention.dq");
  Tensor dk = device.activation(Shape{tokens, kv_heads, dim}, "attention.dk");
  Tensor dv = device.activation(Shape{tokens, kv_heads, dim}, "attention.dv");
  context_attention_backward(context, batch, saved, config.attn_output_gate ? d_o.view() : d_o_heads, dq, dk,
                             dv);
  d_o.reset();
  saved.o.reset();

  Tensor dk_proj = device.activation(Shape{tokens, kv_heads, dim}, "attention.dk_proj");
  {
    Tensor scratch = device.scratch(qk_norm_rope_backward_scratch(tokens, dim), "attention.qk_norm partials");
    device.kernels.qk_norm_rope_backward(
        queue, rope_params(config), dq, dk, q_proj, saved.k_proj.view().reshape({tokens, kv_heads, dim}),
        batch.positions, weights[ParameterRole::kQNorm], weights[ParameterRole::kKNorm], saved.q_rstd,
        saved.k_rstd, dq_proj, dk_proj, store.target(ParameterRole::kQNorm, layer),
        store.target(ParameterRole::kKNorm, layer), scratch);
  }
  linear_weight_gradient(context, dq_proj, x, store.product_target(ParameterRole::kQProj, layer));
  linear_weight_gradient(context, dk_proj, x, store.product_target(ParameterRole::kKProj, layer));
  linear_weight_gradient(context, dv, x, store.product_target(ParameterRole::kVProj, layer));
  Tensor dx = linear_input_gradient(context, dq_proj, weights[ParameterRole::kQProj], "mixer.dx");
  add_linear_input_gradient(context, dk_proj, weights[ParameterRole::kKProj], dx);
  add_linear_input_gradient(context, dv, weights[ParameterRole::kVProj], dx);
  return dx;
}

}  // namespace lathe
