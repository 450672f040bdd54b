#include "lathe/model/context_delta.h"

namespace lathe {
namespace {

Exchange exchange(const ModelContext& context, const char* tensor) {
  return {.axes = kAxisContext, .phase = context.phase, .tensor = tensor};
}

bool first(const BatchView& batch) {
  return batch.context_index == 0;
}
bool last(const BatchView& batch) {
  return batch.context_index == batch.context_size - 1;
}

// Of all shards.
Shape whole_shape(const BatchView& batch, const GatedDeltaRuleParams& p, int64_t width) {
  return {batch.context_size, p.rows * p.value_heads, p.key_dim, width};
}

GatedDeltaRuleFoldParams fold_params(const GatedDeltaRuleParams& p, int64_t count, bool backward) {
  return {.rows = p.rows,
          .value_heads = p.value_heads,
          .key_dim = p.key_dim,
          .value_dim = p.value_dim,
          .count = count,
          .backward = backward};
}

}  // namespace

Request start_conv_tail(ModelContext& context, const BatchView& batch, DeltaSaved& saved) {
  if (batch.context_size == 1) return {};
  const int64_t tail = context.config.linear_conv_kernel_dim - 1;
  const int64_t channels = context.config.linear_mixed_dim();
  LATHE_CHECK(batch.row_length >= tail, "shards of {} tokens for a convolution of {} taps", batch.row_length,
              tail + 1);
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;
  if (!first(batch))
    saved.conv_tail = context.device.activation(Shape{batch.rows * tail, channels}, "delta.conv_tail");
  for (int64_t row = 0; row < batch.rows; ++row) {
    if (!last(batch)) {
      sends.push_back(
          {batch.context_index + 1, saved.qkv.view().rows((row + 1) * batch.row_length - tail, tail)});
    }
    if (!first(batch))
      receives.push_back({batch.context_index - 1, saved.conv_tail.view().rows(row * tail, tail)});
  }
  return context.communicator.start_send_recv(exchange(context, "delta.conv_halo"), sends, receives);
}

TailGradient start_tail_gradient(ModelContext& context, const BatchView& batch, Tensor d_tail) {
  TailGradient out;
  if (batch.context_size == 1) return out;
  const int64_t tail = context.config.linear_conv_kernel_dim - 1;
  out.sent = std::move(d_tail);
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;
  if (!first(batch)) sends.push_back({batch.context_index - 1, out.sent});
  if (!last(batch)) {
    out.received = context.device.activation(Shape{batch.rows * tail, context.config.linear_mixed_dim()},
                                             "delta.dconv_tail");
    receives.push_back({batch.context_index + 1, out.received});
  }
  out.request = context.communicator.start_send_recv(exchange(context, "delta.conv_halo"), sends, receives);
  return out;
}

void finish_tail_gradient(ModelContext& context, const BatchView& batch, TailGradient& tail, View d_inputs) {
  tail.request.wait();
  if (!tail.received.empty()) {
    const int64_t rows = context.config.linear_conv_kernel_dim - 1;
    for (int64_t row = 0; row < batch.rows; ++row) {
      const View to = d_inputs.rows((row + 1) * batch.row_length - rows, rows);
      context.device.kernels.add(*context.device.queue, to, tail.received.view().rows(row * rows, rows), to);
    }
  }
  tail = {};
}

void exchange_states(ModelContext& context, const BatchView& batch, const GatedDeltaRuleParams& p,
                     DeltaSaved& saved) {
  if (batch.context_size == 1) return;
  Device& device = context.device;
  Queue& queue = *device.queue;
  // The first shard's transition has no state to act on, what the last shard does to one nobody asks.
  const bool composed = batch.context_size > 2;
  Tensor state = device.activation(Shape{p.rows, p.value_heads, p.key_dim, p.value_dim}, "delta.state");
  Tensor transition;
  if (composed)
    transition = device.activation(Shape{p.rows, p.value_heads, p.key_dim, p.key_dim}, "delta.transition");
  const bool wanted = composed && !first(batch) && !last(batch);
  if (composed && !wanted) device.kernels.fill(queue, 0, transition);
  if (last(batch)) {
    device.kernels.fill(queue, 0, state);
  } else {
    device.kernels.gated_delta_rule_summary(queue, p, saved.k, saved.v, saved.beta, saved.g, batch.segments,
                                            batch.before_segment, wanted ? transition.view() : View(), state);
  }
  Tensor states = device.activation(whole_shape(batch, p, p.value_dim), "delta.states");
  std::vector<GatherPiece> pieces{{state, states}};
  if (composed) {
    saved.transitions = device.activation(whole_shape(batch, p, p.key_dim), "delta.transitions");
    pieces.push_back({transition, saved.transitions});
  }
  context.communicator.start_all_gather(exchange(context, "delta.state"), pieces).wait();
  if (first(batch)) return;
  saved.initial_state = device.activation(state.view().shape, "delta.initial_state");
  const int64_t before = batch.context_index;
  device.kernels.gated_delta_rule_fold(queue, fold_params(p, before, false),
                                       composed ? saved.transitions.view().rows(0, before) : View(),
                                       states.view().rows(0, before), saved.initial_state);
}

Tensor exchange_state_gradients(ModelContext& context, const BatchView& batch, const GatedDeltaRuleParams& p,
                                const DeltaSaved& saved, ConstView d_o) {
  Tensor out;
  if (batch.context_size == 1) return out;
  Device& device = context.device;
  Queue& queue = *device.queue;
  Tensor state = device.activation(Shape{p.rows, p.value_heads, p.key_dim, p.value_dim}, "delta.dstate");
  if (first(batch)) {
    device.kernels.fill(queue, 0, state);
  } else {
    device.kernels.gated_delta_rule_adjoint_summary(queue, p, d_o, saved.q, saved.k, saved.beta, saved.g,
                                                    batch.segments, batch.before_segment, state);
  }
  const Tensor states = device.activation(whole_shape(batch, p, p.value_dim), "delta.dstates");
  context.communicator.all_gather(exchange(context, "delta.dstate"), state, states);
  if (last(batch)) return out;
  out = device.activation(state.view().shape, "delta.dfinal_state");
  const int64_t behind = batch.context_index + 1;
  const int64_t count = batch.context_size - behind;
  device.kernels.gated_delta_rule_fold(
      queue, fold_params(p, count, true),
      saved.transitions.empty() ? View() : saved.transitions.view().rows(behind, count),
      states.view().rows(behind, count), out);
  return out;
}

}  // namespace lathe
