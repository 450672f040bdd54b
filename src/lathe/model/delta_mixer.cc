// Gated delta rule mixer: projections, causal convolution, gates, delta rule, gated norm, projection.
#include "lathe/model/context_delta.h"
#include "lathe/model/context_heads.h"
#include "lathe/model/decoder.h"

namespace lathe {
namespace {

CausalConvParams conv_params(const ModelConfig& config, const BatchView& batch) {
  return {.rows = batch.rows,
          .tokens = batch.row_length,
          .channels = config.linear_mixed_dim(),
          .taps = config.linear_conv_kernel_dim};
}

DeltaGatesParams gate_params(const ModelConfig& config, const BatchView& batch) {
  return {.tokens = batch.tokens(),
          .key_heads = config.linear_num_key_heads,
          .value_heads = config.linear_num_value_heads,
          .key_dim = config.linear_key_head_dim,
          .value_dim = config.linear_value_head_dim};
}

GatedDeltaRuleParams rule_params(const ModelContext& context, const ModelConfig& config,
                                 const BatchView& batch) {
  return {.rows = batch.rows,
          .tokens = batch.row_length,
          .key_heads = config.linear_num_key_heads,
          .value_heads = config.linear_num_value_heads,
          .key_dim = config.linear_key_head_dim,
          .value_dim = config.linear_value_head_dim,
          .chunk = context.options.delta_rule_chunk};
}

// What comes before the shard, for the convolution; absent at the row's beginning.
struct TailViews {
  View inputs;
  ConstView segments;
};

TailViews tail_views(const ModelConfig& config, const BatchView& batch, const DeltaSaved& saved) {
  if (saved.conv_tail.empty()) return {};
  const int64_t tail = config.linear_conv_kernel_dim - 1;
  return {saved.conv_tail.view().reshape({batch.rows, tail, config.linear_mixed_dim()}),
          batch.tail_segments.reshape({batch.rows, tail})};
}

// The share's rows of per-head parameters and of their gradients.
struct ShareWeights {
  ShareWeights(const ModelContext& context, const DeltaShare& share, const GatheredWeights& weights)
      : conv(weights[ParameterRole::kConv]),
        a_log(heads(share, weights[ParameterRole::kALog])),
        dt_bias(heads(share, weights[ParameterRole::kDtBias])) {
    if (!share.by_heads) return;
    buffer = share.conv_weight(context, conv);
    conv = buffer;
  }
  // Rows of all value heads' [heads]; absent stays absent.
  template <typename AnyView>
  static AnyView heads(const DeltaShare& share, AnyView whole) {
    if (!share.by_heads || whole.empty()) return whole;
    return whole.rows(share.value_head(), share.config.linear_num_value_heads);
  }
  ConstView conv, a_log, dt_bias;
  Tensor buffer;
};

// Convolution, gates and rule of a share, from saved.qkv and saved.ba.
void rule_forward(ModelContext& context, const DeltaShare& share, const GatheredWeights& all_weights,
                  DeltaSaved& saved, View o) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = share.config;
  const BatchView& batch = share.batch;
  const int64_t tokens = batch.tokens();
  const int64_t key_heads = config.linear_num_key_heads;
  const int64_t value_heads = config.linear_num_value_heads;
  const int64_t key_dim = config.linear_key_head_dim;
  const int64_t value_dim = config.linear_value_head_dim;
  const ShareWeights weights(context, share, all_weights);

  saved.mixed = device.activation(Shape{tokens, config.linear_mixed_dim()}, "delta.mixed");
  const TailViews before = tail_views(config, batch, saved);
  device.kernels.causal_conv_forward(queue, conv_params(config, batch), saved.qkv, weights.conv,
                                     batch.segments, before.inputs, before.segments, saved.mixed);

  saved.q = device.activation(Shape{tokens, key_heads, key_dim}, "delta.q");
  saved.k = device.activation(Shape{tokens, key_heads, key_dim}, "delta.k");
  saved.v = device.activation(Shape{tokens, value_heads, value_dim}, "delta.v");
  saved.beta = device.activation(Shape{tokens, value_heads}, "delta.beta");
  saved.g = device.activation(Shape{tokens, value_heads}, "delta.g");
  device.kernels.delta_gates_forward(queue, gate_params(config, batch), saved.mixed, saved.ba, weights.a_log,
                                     weights.dt_bias, batch.segments, saved.q, saved.k, saved.v, saved.beta,
                                     saved.g);

  const GatedDeltaRuleParams params = rule_params(context, config, batch);
  exchange_states(context, batch, params, saved);
  saved.chunk_states = device.memory->allocate(
      device.float_type(), Shape{batch.rows * params.chunks(), value_heads, key_dim, value_dim},
      MemoryKind::kActivations, "delta.chunk_states");
  device.kernels.gated_delta_rule_forward(
      queue, params, saved.q, saved.k, saved.v, saved.beta, saved.g, batch.segments, saved.initial_state,
      saved.initial_state.empty() ? ConstView() : batch.before_segment, o, {}, saved.chunk_states);
}

struct InputGradients {
  Tensor qkv, ba;
  Tensor tail;  // of what came before the shard
};

// The gradient of a share's convolution weight: added where the whole one is, or kept apart and added row by row.
class ConvGradient {
 public:
  ConvGradient(const ModelContext& context, const DeltaShare& share, View whole)
      : context_(context), share_(share), whole_(whole) {
    if (!share.by_heads || whole.empty()) return;
    buffer_ = context.device.activation(
        Shape{share.config.linear_mixed_dim(), share.config.linear_conv_kernel_dim}, "delta.dconv_share");
    context.device.kernels.fill(*context.device.queue, 0, buffer_);
  }
  [[nodiscard]] View target() const { return buffer_.empty() ? whole_ : buffer_.view(); }
  void finish() const {
    if (!buffer_.empty()) share_.add_conv_gradient(context_, buffer_, whole_);
  }

 private:
  const ModelContext& context_;
  const DeltaShare& share_;
  View whole_;
  Tensor buffer_;
};

// Of rule_forward; adds the gradients of its parameters.
InputGradients rule_backward(ModelContext& context, const DeltaShare& share,
                             const GatheredWeights& all_weights, int layer, DeltaSaved& saved, Tensor d_o) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  ParameterStore& store = context.store;
  const ModelConfig& config = share.config;
  const BatchView& batch = share.batch;
  const int64_t tokens = batch.tokens();
  const int64_t key_heads = config.linear_num_key_heads;
  const int64_t value_heads = config.linear_num_value_heads;
  const int64_t key_dim = config.linear_key_head_dim;
  const int64_t value_dim = config.linear_value_head_dim;
  const ShareWeights weights(context, share, all_weights);

  InputGradients out;
  Tensor d_mixed = device.activation(Shape{tokens, config.linear_mixed_dim()}, "delta.dmixed");
  out.ba = device.activation(Shape{tokens, 2 * value_heads}, "delta.dba");
  {
    Tensor dq = device.activation(Shape{tokens, key_heads, key_dim}, "delta.dq");
    Tensor dk = device.activation(Shape{tokens, key_heads, key_dim}, "delta.dk");
    Tensor dv = device.activation(Shape{tokens, value_heads, value_dim}, "delta.dv");
    Tensor dbeta = device.activation(Shape{tokens, value_heads}, "delta.dbeta");
    Tensor dg = device.activation(Shape{tokens, value_heads}, "delta.dg");
    const GatedDeltaRuleParams params = rule_params(context, config, batch);
    {
      const Tensor d_final = exchange_state_gradients(context, batch, params, saved, d_o);
      Tensor scratch =
          device.scratch(gated_delta_rule_backward_scratch(params), "delta.dq and dk by value head");
      device.kernels.gated_delta_rule_backward(
          queue, params, d_o, d_final, saved.q, saved.k, saved.v, saved.beta, saved.g, batch.segments,
          saved.initial_state, saved.initial_state.empty() ? ConstView() : batch.before_segment,
          saved.chunk_states, dq, dk, dv, dbeta, dg, {}, scratch);
    }
    d_o.reset();
    saved.chunk_states.reset();
    const DeltaGatesParams gates = gate_params(config, batch);
    Tensor scratch = device.scratch(delta_gates_backward_scratch(gates), "delta.gate partials");
    device.kernels.delta_gates_backward(
        queue, gates, dq, dk, dv, dbeta, dg, saved.mixed, saved.ba, weights.a_log, weights.dt_bias,
        batch.segments, d_mixed, out.ba,
        ShareWeights::heads(share, store.target(ParameterRole::kALog, layer)),
        ShareWeights::heads(share, store.target(ParameterRole::kDtBias, layer)), scratch);
  }
  saved.mixed.reset();
  out.qkv = device.activation(Shape{tokens, config.linear_mixed_dim()}, "delta.dqkv");
  const TailViews before = tail_views(config, batch, saved);
  if (!before.inputs.empty()) out.tail = device.activation(before.inputs.shape, "delta.dtail");
  const ConvGradient d_conv(context, share, store.target(ParameterRole::kConv, layer));
  const CausalConvParams conv = conv_params(config, batch);
  Tensor scratch = device.scratch(causal_conv_backward_scratch(conv), "delta.conv partials");
  device.kernels.causal_conv_backward(queue, conv, d_mixed, saved.qkv, weights.conv, batch.segments,
                                      before.inputs, before.segments, out.qkv, d_conv.target(), out.tail,
                                      scratch);
  d_conv.finish();
  saved.qkv.reset();
  return out;
}

}  // namespace

Tensor delta_forward(ModelContext& context, const BatchView& batch, const GatheredWeights& weights,
                     ConstView x, DeltaSaved& saved) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = context.config;
  const int64_t tokens = batch.tokens();
  const int64_t value_heads = config.linear_num_value_heads;
  const int64_t value_dim = config.linear_value_head_dim;

  saved.qkv = linear_forward(context, x, weights[ParameterRole::kInProjQkv], "delta.qkv");
  Request tail;
  if (!DeltaShare(context, batch).by_heads) tail = start_conv_tail(context, batch, saved);
  saved.z = linear_forward(context, x, weights[ParameterRole::kInProjZ], "delta.z");
  saved.ba = linear_forward(context, x, weights[ParameterRole::kInProjBa], "delta.ba");

  tail.wait();
  saved.o = device.activation(Shape{tokens, value_heads, value_dim}, "delta.o");
  const DeltaShare share(context, batch);
  if (share.by_heads) {
    inputs_to_heads(context, batch, share, saved);
    const Tensor o = device.activation(
        Shape{share.batch.tokens(), share.config.linear_num_value_heads, value_dim}, "delta.share_o");
    rule_forward(context, share, weights, saved, o);
    outputs_to_shards(context, batch, share, o, saved.o);
  } else {
    rule_forward(context, share, weights, saved, saved.o);
  }

  Tensor y = device.activation(Shape{tokens * value_heads, value_dim}, "delta.gated");
  saved.rstd = device.activation(Shape{tokens * value_heads}, "delta.rstd");
  device.kernels.gated_rmsnorm_forward(queue, {.eps = config.rms_norm_eps},
                                       saved.o.view().reshape({tokens * value_heads, value_dim}),
                                       saved.z.view().reshape({tokens * value_heads, value_dim}),
                                       weights[ParameterRole::kGatedNorm], y, saved.rstd);
  return linear_forward(context, y, weights[ParameterRole::kOutProj], "mixer");
}

Tensor delta_backward(ModelContext& context, const BatchView& batch, const GatheredWeights& weights,
                      int layer, ConstView x, DeltaSaved& saved, ConstView dy) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = context.config;
  ParameterStore& store = context.store;
  const int64_t tokens = batch.tokens();
  const int64_t value_heads = config.linear_num_value_heads;
  const int64_t value_dim = config.linear_value_head_dim;
  const Shape head_rows{tokens * value_heads, value_dim};
  const View o_rows = saved.o.view().reshape(head_rows);
  const View z_rows = saved.z.view().reshape(head_rows);

  if (const GradientTarget target = store.product_target(ParameterRole::kOutProj, layer); target.wanted()) {
    Tensor y = device.activation(head_rows, "delta.gated");
    device.kernels.gated_rmsnorm_forward(queue, {.eps = config.rms_norm_eps}, o_rows, z_rows,
                                         weights[ParameterRole::kGatedNorm], y, saved.rstd);
    linear_weight_gradient(context, dy, y, target);
  }
  Tensor d_o = device.activation(Shape{tokens, value_heads, value_dim}, "delta.do");
  Tensor dz = device.activation(Shape{tokens, value_heads * value_dim}, "delta.dz");
  {
    Tensor d_y = linear_input_gradient(context, dy, weights[ParameterRole::kOutProj], "delta.dgated");
    Tensor scratch = device.scratch(gated_rmsnorm_backward_scratch(tokens * value_heads, value_dim),
                                    "delta.norm partials");
    device.kernels.gated_rmsnorm_backward(queue, {.eps = config.rms_norm_eps}, d_y.view().reshape(head_rows),
                                          o_rows, z_rows, weights[ParameterRole::kGatedNorm], saved.rstd,
                                          d_o.view().reshape(head_rows), dz.view().reshape(head_rows),
                                          store.target(ParameterRole::kGatedNorm, layer), scratch);
  }
  saved.o.reset();
  saved.z.reset();

  const DeltaShare share(context, batch);
  if (share.by_heads) d_o = output_gradients_to_heads(context, batch, share, d_o);
  InputGradients d_in = rule_backward(context, share, weights, layer, saved, std::move(d_o));
  TailGradient tail;
  if (share.by_heads) {
    InputGradients whole{device.activation(Shape{tokens, config.linear_mixed_dim()}, "delta.dqkv"),
                         device.activation(Shape{tokens, 2 * value_heads}, "delta.dba"),
                         {}};
    input_gradients_to_shards(context, batch, share, d_in.qkv, d_in.ba, whole.qkv, whole.ba);
    d_in = std::move(whole);
  } else {
    tail = start_tail_gradient(context, batch, std::move(d_in.tail));
  }
  const View d_qkv = d_in.qkv;
  const View d_ba = d_in.ba;

  linear_weight_gradient(context, dz, x, store.product_target(ParameterRole::kInProjZ, layer));
  linear_weight_gradient(context, d_ba, x, store.product_target(ParameterRole::kInProjBa, layer));
  finish_tail_gradient(context, batch, tail, d_qkv);
  linear_weight_gradient(context, d_qkv, x, store.product_target(ParameterRole::kInProjQkv, layer));
  Tensor dx = linear_input_gradient(context, d_qkv, weights[ParameterRole::kInProjQkv], "mixer.dx");
  add_linear_input_gradient(context, dz, weights[ParameterRole::kInProjZ], dx);
  add_linear_input_gradient(context, d_ba, weights[ParameterRole::kInProjBa], dx);
  return dx;
}

}  // namespace lathe
