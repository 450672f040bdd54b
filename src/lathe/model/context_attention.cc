#include "lathe/model/context_attention.h"

#include <cmath>

#include "lathe/model/context_shard.h"

namespace lathe {
namespace {

AttentionParams attention_params(const ModelConfig& config, const BatchView& batch, int64_t q_tokens,
                                 int64_t q_offset) {
  return {.rows = batch.rows,
          .q_tokens = q_tokens,
          .kv_tokens = batch.row_length * batch.context_size,
          .q_offset = q_offset,
          .q_heads = config.num_attention_heads,
          .kv_heads = config.num_key_value_heads,
          .head_dim = config.head_dim,
          .scale = 1 / std::sqrt(static_cast<double>(config.head_dim))};
}

bool balanced(const ModelContext& context, const BatchView& batch) {
  return batch.context_size > 1 && context.options.context_balance;
}

Exchange exchange(const ModelContext& context, const char* tensor) {
  return {.axes = kAxisContext, .phase = context.phase, .tensor = tensor};
}

// The two half shards of every row of a shard's tensor, and of the balanced ones: [rows * row_length / 2, ...] each.
struct HalfMoves {
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;
};

int64_t half_begin(const BatchView& batch, int64_t row, int64_t half) {
  return row * batch.row_length + half * (batch.row_length / 2);
}

// From the shards to whom attends for them. Pieces for one peer: by half shard, then by row, on both sides.
HalfMoves to_balanced(const BatchView& batch, ConstView shard, const std::array<View, 2>& halves) {
  const int64_t half = batch.row_length / 2;
  HalfMoves moves;
  for (int i = 0; i < 2; ++i) {
    const int owner = balanced_owner(2 * batch.context_index + i, batch.context_size);
    const int from = balanced_halves(batch.context_index, batch.context_size)[static_cast<size_t>(i)] / 2;
    for (int64_t row = 0; row < batch.rows; ++row) {
      moves.sends.push_back({owner, shard.rows(half_begin(batch, row, i), half)});
      moves.receives.push_back({from, halves[static_cast<size_t>(i)].rows(row * half, half)});
    }
  }
  return moves;
}

// The way back.
HalfMoves to_shards(const BatchView& batch, const std::array<View, 2>& halves, View shard) {
  const int64_t half = batch.row_length / 2;
  HalfMoves moves;
  for (int i = 0; i < 2; ++i) {
    const int owner = balanced_owner(2 * batch.context_index + i, batch.context_size);
    const int to = balanced_halves(batch.context_index, batch.context_size)[static_cast<size_t>(i)] / 2;
    for (int64_t row = 0; row < batch.rows; ++row) {
      moves.sends.push_back({to, halves[static_cast<size_t>(i)].rows(row * half, half)});
      moves.receives.push_back({owner, shard.rows(half_begin(batch, row, i), half)});
    }
  }
  return moves;
}

Request start(ModelContext& context, const char* tensor, const HalfMoves& moves) {
  return context.communicator.start_send_recv(exchange(context, tensor), moves.sends, moves.receives);
}

Request start_gather(ModelContext& context, const BatchView& batch, AttentionSaved& saved) {
  const Shape shape{batch.tokens() * batch.context_size, context.config.num_key_value_heads,
                    context.config.head_dim};
  saved.row_k = context.device.activation(shape, "attention.row_k");
  saved.row_v = context.device.activation(shape, "attention.row_v");
  const std::array<GatherPiece, 2> pieces{GatherPiece{saved.k, saved.row_k, batch.rows},
                                          GatherPiece{saved.v, saved.row_v, batch.rows}};
  return context.communicator.start_all_gather(exchange(context, "attention.kv"), pieces);
}

void forward_balanced(ModelContext& context, const BatchView& batch, AttentionSaved& saved) {
  Device& device = context.device;
  const int64_t half = batch.row_length / 2;
  const int64_t heads = context.config.num_attention_heads;
  const Shape shape{batch.rows * half, heads, context.config.head_dim};
  for (BalancedHalf& part : saved.halves) part.q = device.activation(shape, "attention.balanced_q");
  const std::array<View, 2> queries{saved.halves[0].q, saved.halves[1].q};
  Request gather = start_gather(context, batch, saved);
  start(context, "attention.q", to_balanced(batch, saved.q, queries)).wait();
  gather.wait();
  saved.q.reset();
  saved.k.reset();
  saved.v.reset();
  const std::array<int, 2> halves = balanced_halves(batch.context_index, batch.context_size);
  for (size_t i = 0; i < 2; ++i) {
    BalancedHalf& part = saved.halves[i];
    part.o = device.activation(shape, "attention.balanced_o");
    part.lse = device.activation(Shape{batch.rows * half, heads}, "attention.lse");
    device.kernels.attention_forward(
        *device.queue, attention_params(context.config, batch, half, halves[i] * half), part.q, saved.row_k,
        saved.row_v, batch.balanced_segments[i], batch.row_segments, part.o, part.lse);
  }
  start(context, "attention.o", to_shards(batch, {saved.halves[0].o, saved.halves[1].o}, saved.o)).wait();
}

// dk and dv of the whole rows as this rank saw them.
struct RowGradients {
  RowGradients(Device& device, const Shape& shape)
      : dk(device.activation(shape, "attention.row_dk")), dv(device.activation(shape, "attention.row_dv")) {}
  Tensor dk, dv;
};

Request start_reduction(ModelContext& context, const BatchView& batch, const RowGradients& rows, View dk,
                        View dv) {
  const std::array<ReducePiece, 2> pieces{ReducePiece{rows.dk, dk, batch.rows},
                                          ReducePiece{rows.dv, dv, batch.rows}};
  return context.communicator.start_reduce_scatter(exchange(context, "attention.kv"), pieces);
}

void backward_balanced(ModelContext& context, const BatchView& batch, AttentionSaved& saved, ConstView d_o,
                       View dq, View dk, View dv) {
  Device& device = context.device;
  const int64_t half = batch.row_length / 2;
  const Shape shape{batch.rows * half, context.config.num_attention_heads, context.config.head_dim};
  std::array<Tensor, 2> d_out;
  for (Tensor& part : d_out) part = device.activation(shape, "attention.balanced_do");
  start(context, "attention.o", to_balanced(batch, d_o, {d_out[0], d_out[1]})).wait();
  std::array<Tensor, 2> d_query;
  RowGradients sum(device, saved.row_k.view().shape);
  const std::array<int, 2> halves = balanced_halves(batch.context_index, batch.context_size);
  for (size_t i = 0; i < 2; ++i) {
    BalancedHalf& part = saved.halves[i];
    const AttentionParams params = attention_params(context.config, batch, half, halves[i] * half);
    d_query[i] = device.activation(shape, "attention.balanced_dq");
    const Tensor scratch = device.scratch(attention_backward_scratch(params), "attention.delta");
    const auto run = [&](RowGradients& to) {
      device.kernels.attention_backward(*device.queue, params, d_out[i], part.q, saved.row_k, saved.row_v,
                                        batch.balanced_segments[i], batch.row_segments, part.o, part.lse,
                                        d_query[i], to.dk, to.dv, scratch);
    };
    if (i == 0) {
      run(sum);
    } else {
      RowGradients more(device, saved.row_k.view().shape);
      run(more);
      device.kernels.add(*device.queue, sum.dk, more.dk, sum.dk);
      device.kernels.add(*device.queue, sum.dv, more.dv, sum.dv);
    }
    part = {};
    d_out[i].reset();
  }
  saved.row_k.reset();
  saved.row_v.reset();
  Request reduction = start_reduction(context, batch, sum, dk, dv);
  start(context, "attention.q", to_shards(batch, {d_query[0], d_query[1]}, dq)).wait();
  reduction.wait();
}

}  // namespace

void context_attention_forward(ModelContext& context, const BatchView& batch, AttentionSaved& saved) {
  Device& device = context.device;
  const ModelConfig& config = context.config;
  saved.o =
      device.activation(Shape{batch.tokens(), config.num_attention_heads, config.head_dim}, "attention.o");
  if (balanced(context, batch)) {
    forward_balanced(context, batch, saved);
    return;
  }
  saved.lse = device.activation(Shape{batch.tokens(), config.num_attention_heads}, "attention.lse");
  if (batch.context_size > 1) {
    start_gather(context, batch, saved).wait();
    saved.k.reset();
    saved.v.reset();
  }
  const bool shared = batch.context_size > 1;
  const ConstView k = shared ? saved.row_k : saved.k;
  const ConstView v = shared ? saved.row_v : saved.v;
  const int64_t offset = batch.context_index * batch.row_length;
  device.kernels.attention_forward(*device.queue, attention_params(config, batch, batch.row_length, offset),
                                   saved.q, k, v.reshape(k.shape), batch.segments,
                                   shared ? batch.row_segments : batch.segments, saved.o, saved.lse);
}

void context_attention_backward(ModelContext& context, const BatchView& batch, AttentionSaved& saved,
                                ConstView d_o, View dq, View dk, View dv) {
  if (balanced(context, batch)) {
    backward_balanced(context, batch, saved, d_o, dq, dk, dv);
    return;
  }
  Device& device = context.device;
  const AttentionParams params =
      attention_params(context.config, batch, batch.row_length, batch.context_index * batch.row_length);
  const Tensor scratch = device.scratch(attention_backward_scratch(params), "attention.delta");
  if (batch.context_size == 1) {
    device.kernels.attention_backward(*device.queue, params, d_o, saved.q, saved.k,
                                      saved.v.view().reshape(saved.k.view().shape), batch.segments,
                                      batch.segments, saved.o, saved.lse, dq, dk, dv, scratch);
    return;
  }
  const RowGradients rows(device, saved.row_k.view().shape);
  device.kernels.attention_backward(*device.queue, params, d_o, saved.q, saved.row_k, saved.row_v,
                                    batch.segments, batch.row_segments, saved.o, saved.lse, dq, rows.dk,
                                    rows.dv, scratch);
  saved.row_k.reset();
  saved.row_v.reset();
  start_reduction(context, batch, rows, dk, dv).wait();
}

}  // namespace lathe
