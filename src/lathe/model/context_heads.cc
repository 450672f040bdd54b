#include "lathe/model/context_heads.h"

#include <numeric>

namespace lathe {
namespace {

// Columns of a shard's tensor that are divided evenly, section by section, and what a rank has of them.
struct Sections {
  std::vector<int64_t> widths;
  [[nodiscard]] int64_t total() const { return std::accumulate(widths.begin(), widths.end(), int64_t{0}); }
};

template <typename AnyView>
struct Moved {
  AnyView view;  // [tokens, columns]
  Sections sections;
};

Sections qkv_sections(const ModelConfig& c) {
  const int64_t keys = c.linear_num_key_heads * c.linear_key_head_dim;
  return {{keys, keys, c.linear_value_dim()}};
}
Sections ba_sections(const ModelConfig& c) {
  return {{c.linear_num_value_heads, c.linear_num_value_heads}};
}
Sections output_sections(const ModelConfig& c) {
  return {{c.linear_value_dim()}};
}

// Buffers [context_size, tokens, a rank's columns of all tensors].
struct Messages {
  Messages(ModelContext& context, const BatchView& batch, int64_t width)
      : size(batch.context_size),
        tokens(batch.tokens()),
        columns(width),
        sent(context.device.activation(Shape{size * tokens, width}, "delta.heads_sent")),
        received(context.device.activation(Shape{size * tokens, width}, "delta.heads_received")) {}
  void exchange(ModelContext& context, const char* tensor) const {
    const Shape shape{size, tokens, columns};
    context.communicator.all_to_all({.axes = kAxisContext, .phase = context.phase, .tensor = tensor},
                                    sent.view().reshape(shape), received.view().reshape(shape));
  }
  int64_t size;
  int64_t tokens;
  int64_t columns;
  Tensor sent, received;
};

// Calls fn(section's first column in the shard's tensor, its width on one rank, its first column in a message).
template <typename Fn>
void for_sections(const Sections& sections, int64_t size, int64_t& column, const Fn& fn) {
  int64_t first = 0;
  for (const int64_t width : sections.widths) {
    fn(first, width / size, column);
    first += width;
    column += width / size;
  }
}

// whole: [rows * row length, a rank's columns] each.
void shards_to_heads(ModelContext& context, const BatchView& batch, const char* tensor,
                     const std::vector<Moved<ConstView>>& shard, const std::vector<View>& whole) {
  const auto& copy = context.device.kernels.copy_columns;
  Queue& queue = *context.device.queue;
  const int64_t size = batch.context_size;
  int64_t width = 0;
  for (const auto& moved : shard) width += moved.sections.total() / size;
  const Messages messages(context, batch, width);
  for (int64_t peer = 0; peer < size; ++peer) {
    const View to = messages.sent.view().rows(peer * messages.tokens, messages.tokens);
    int64_t column = 0;
    for (const auto& moved : shard) {
      for_sections(moved.sections, size, column, [&](int64_t first, int64_t share, int64_t at) {
        copy(queue, {.from = first + peer * share, .to = at, .columns = share}, moved.view, to);
      });
    }
  }
  messages.exchange(context, tensor);
  for (int64_t peer = 0; peer < size; ++peer) {
    for (int64_t row = 0; row < batch.rows; ++row) {
      const View from =
          messages.received.view().rows(peer * messages.tokens + row * batch.row_length, batch.row_length);
      int64_t column = 0;
      for (const View& to : whole) {
        copy(queue, {.from = column, .to = 0, .columns = to.dim(1)}, from,
             to.rows((row * size + peer) * batch.row_length, batch.row_length));
        column += to.dim(1);
      }
    }
  }
}

// The way back.
void heads_to_shards(ModelContext& context, const BatchView& batch, const char* tensor,
                     const std::vector<ConstView>& whole, const std::vector<Moved<View>>& shard) {
  const auto& copy = context.device.kernels.copy_columns;
  Queue& queue = *context.device.queue;
  const int64_t size = batch.context_size;
  int64_t width = 0;
  for (const ConstView& view : whole) width += view.dim(1);
  const Messages messages(context, batch, width);
  for (int64_t peer = 0; peer < size; ++peer) {
    for (int64_t row = 0; row < batch.rows; ++row) {
      const View to =
          messages.sent.view().rows(peer * messages.tokens + row * batch.row_length, batch.row_length);
      int64_t column = 0;
      for (const ConstView& from : whole) {
        copy(queue, {.from = 0, .to = column, .columns = from.dim(1)},
             from.rows((row * size + peer) * batch.row_length, batch.row_length), to);
        column += from.dim(1);
      }
    }
  }
  messages.exchange(context, tensor);
  for (int64_t peer = 0; peer < size; ++peer) {
    const View from = messages.received.view().rows(peer * messages.tokens, messages.tokens);
    int64_t column = 0;
    for (const auto& moved : shard) {
      for_sections(moved.sections, size, column, [&](int64_t first, int64_t share, int64_t at) {
        copy(queue, {.from = at, .to = first + peer * share, .columns = share}, from, moved.view);
      });
    }
  }
}

// Calls fn(first row in the whole parameter, first row in the share, rows) for the three runs of channels.
template <typename Fn>
void for_channels(const ModelConfig& share, int64_t size, int64_t index, const Fn& fn) {
  int64_t whole = 0;
  int64_t at = 0;
  for (const int64_t rows : qkv_sections(share).widths) {
    fn(whole + index * rows, at, rows);
    whole += rows * size;
    at += rows;
  }
}

}  // namespace

DeltaContext resolve_delta_context(const ModelConfig& config, DeltaContext asked, int context_size) {
  const bool divide = config.linear_num_key_heads > 0 && config.linear_num_key_heads % context_size == 0;
  if (asked == DeltaContext::kAuto)
    return context_size == 2 && divide ? DeltaContext::kHeads : DeltaContext::kSequence;
  if (asked == DeltaContext::kHeads && config.linear_num_key_heads > 0 && !divide) {
    config_error("gdn.context_parallel",
                 fmt::format("heads: {} key heads do not divide among {} context ranks",
                             config.linear_num_key_heads, context_size),
                 "set gdn.context_parallel to sequence, or mesh.context to a divisor");
  }
  return asked;
}

DeltaShare::DeltaShare(const ModelContext& context, const BatchView& shard)
    : by_heads(shard.context_size > 1 && context.options.delta_context == DeltaContext::kHeads),
      config(context.config),
      batch(shard) {
  if (!by_heads) return;
  index = shard.context_index;
  config.linear_num_key_heads /= shard.context_size;
  config.linear_num_value_heads /= shard.context_size;
  batch.row_length *= shard.context_size;
  batch.context_size = 1;
  batch.context_index = 0;
  batch.segments = shard.row_segments;
}

Tensor DeltaShare::conv_weight(const ModelContext& context, ConstView whole) const {
  const int64_t taps = config.linear_conv_kernel_dim;
  const int64_t size = context.config.linear_num_key_heads / config.linear_num_key_heads;
  Tensor out = context.device.activation(Shape{config.linear_mixed_dim(), taps}, "delta.conv_share");
  for_channels(config, size, index, [&](int64_t from, int64_t to, int64_t rows) {
    context.device.kernels.cast(*context.device.queue, whole.rows(from, rows), out.view().rows(to, rows));
  });
  return out;
}

void DeltaShare::add_conv_gradient(const ModelContext& context, ConstView share, View whole) const {
  const int64_t size = context.config.linear_num_key_heads / config.linear_num_key_heads;
  for_channels(config, size, index, [&](int64_t to, int64_t from, int64_t rows) {
    const View sum = whole.rows(to, rows);
    context.device.kernels.add(*context.device.queue, sum, share.rows(from, rows), sum);
  });
}

void inputs_to_heads(ModelContext& context, const BatchView& shard, const DeltaShare& share,
                     DeltaSaved& saved) {
  Tensor qkv =
      context.device.activation(Shape{share.batch.tokens(), share.config.linear_mixed_dim()}, "delta.qkv");
  Tensor ba = context.device.activation(Shape{share.batch.tokens(), 2 * share.config.linear_num_value_heads},
                                        "delta.ba");
  shards_to_heads(context, shard, "delta.heads",
                  {{saved.qkv, qkv_sections(context.config)}, {saved.ba, ba_sections(context.config)}},
                  {qkv, ba});
  saved.qkv = std::move(qkv);
  saved.ba = std::move(ba);
}

void input_gradients_to_shards(ModelContext& context, const BatchView& shard, const DeltaShare& /*share*/,
                               ConstView share_d_qkv, ConstView share_d_ba, View d_qkv, View d_ba) {
  heads_to_shards(context, shard, "delta.heads", {share_d_qkv, share_d_ba},
                  {{d_qkv, qkv_sections(context.config)}, {d_ba, ba_sections(context.config)}});
}

void outputs_to_shards(ModelContext& context, const BatchView& shard, const DeltaShare& share,
                       ConstView share_o, View o) {
  heads_to_shards(
      context, shard, "delta.heads_o",
      {share_o.reshape({share.batch.tokens(), share.config.linear_value_dim()})},
      {{o.reshape({shard.tokens(), context.config.linear_value_dim()}), output_sections(context.config)}});
}

Tensor output_gradients_to_heads(ModelContext& context, const BatchView& shard, const DeltaShare& share,
                                 ConstView d_o) {
  Tensor out = context.device.activation(
      Shape{share.batch.tokens(), share.config.linear_num_value_heads, share.config.linear_value_head_dim},
      "delta.do");
  shards_to_heads(
      context, shard, "delta.heads_o",
      {{d_o.reshape({shard.tokens(), context.config.linear_value_dim()}), output_sections(context.config)}},
      {out.view().reshape({share.batch.tokens(), share.config.linear_value_dim()})});
  return out;
}

}  // namespace lathe
