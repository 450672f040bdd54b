// Heads of the gated delta rule divided among context ranks: the other way to run it on rows in shards (context_delta.h).
// An all-to-all before the convolution turns all heads of a shard into some heads of whole rows, one after the rule turns
// outputs back; convolution and rule are per channel and head, so nothing else crosses. Moves O(tokens) values where the
// division by position moves one state per row and head. Rank r of n has key heads [r K / n, (r + 1) K / n) and the value
// heads that read them.
#pragma once

#include "lathe/model/decoder.h"

namespace lathe {

// kSequence or kHeads. auto: heads for two ranks if they divide the key heads, else sequence. Config error for heads that
// do not divide.
[[nodiscard]] DeltaContext resolve_delta_context(const ModelConfig& config, DeltaContext asked,
                                                 int context_size);

// What convolution and rule run on: all heads of this rank's shard, or its heads of whole rows.
struct DeltaShare {
  DeltaShare(const ModelContext& context, const BatchView& shard);
  bool by_heads;
  ModelConfig config;  // heads: the share's
  BatchView batch;
  int64_t index = 0;                                                                          // of the share
  [[nodiscard]] int64_t value_head() const { return index * config.linear_num_value_heads; }  // the first one

  // Rows of the convolution's weight [channels, taps] and its gradient.
  [[nodiscard]] Tensor conv_weight(const ModelContext& context, ConstView whole) const;
  void add_conv_gradient(const ModelContext& context, ConstView share, View whole) const;
};

// By heads: saved.qkv and saved.ba of the shard become those of the share.
void inputs_to_heads(ModelContext& context, const BatchView& shard, const DeltaShare& share,
                     DeltaSaved& saved);
// Gradients of the share's inputs, back to the shard: d_qkv [tokens, mixed dim], d_ba [tokens, 2 value heads].
void input_gradients_to_shards(ModelContext& context, const BatchView& shard, const DeltaShare& share,
                               ConstView share_d_qkv, ConstView share_d_ba, View d_qkv, View d_ba);
// Outputs of the rule [tokens, value heads, value dim] and, in backward, their gradients the other way.
void outputs_to_shards(ModelContext& context, const BatchView& shard, const DeltaShare& share,
                       ConstView share_o, View o);
[[nodiscard]] Tensor output_gradients_to_heads(ModelContext& context, const BatchView& shard,
                                               const DeltaShare& share, ConstView d_o);

}  // namespace lathe
