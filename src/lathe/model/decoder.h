// The decoder: embedding and layers, forward and hand-written backward, over one micro-batch of packed rows. The head
// (final norm, log-probs) is the caller's. Straight-line calls of kernels; backward is forward read upwards:
//   h = x + mixer(norm1(x));  out = h + mlp(norm2(h))        dh = dout + norm2'(mlp'(dout));  dx = dh + norm1'(mixer'(dh))
// Activations [tokens, hidden], tokens = rows * row_length. Padding tokens (segment 0) take part in nothing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/kernels/device.h"
#include "lathe/mesh/communicator.h"
#include "lathe/model/config.h"
#include "lathe/model/parameter_store.h"

namespace lathe {

// How context ranks share the gated delta rule (context_heads.h).
enum class DeltaContext : uint8_t { kAuto, kSequence, kHeads };

struct DecoderOptions {
  // Of the matrix products of backward: f32 or bf16 (rounded inputs, f32 sums). Those of forward are f32 always: experts
  // are chosen by what they give, and rounding to bf16 flips near ties.
  DType compute = DType::kF32;
  int64_t delta_rule_chunk = 64;
  bool context_balance = true;  // of attention, over context ranks (context_shard.h)
  DeltaContext delta_context = DeltaContext::kAuto;
  bool exclude_padding_from_routing = true;
  double ragged_buffer_factor = -1;  // rows of experts, of a balanced load; <= 0: room for all
  int64_t token_chunks = 1;          // over several expert ranks
  bool chunk_pipeline = false;
};

// What model code needs to run anywhere.
struct ModelContext {
  Device& device;
  Communicator& communicator;
  ParameterStore& store;
  const ModelConfig& config;
  DecoderOptions options;
  Phase phase = Phase::kForward;  // of the step, for what is exchanged; the decoder sets it
};

// A micro-batch on the device: this rank's shard of every row. A row is cut into `context_size` contiguous shards of
// `row_length` tokens in natural order; on one rank the shard is the row. Segment ids are unique within the whole row.
struct BatchView {
  int64_t rows = 0;
  int64_t row_length = 0;                 // of a shard
  ConstView ids;                          // i32 [tokens]
  ConstView segments;                     // i32 [tokens], 0 = padding
  ConstView positions;                    // i32 [tokens]
  std::vector<ConstView> forced_experts;  // per MoE layer i32 [tokens, top_k], or empty
  int context_size = 1;
  int context_index = 0;
  ConstView row_segments =
      {};  // i32 [rows, context_size * row_length]: of the whole rows; `segments` on one rank
  // What a shard knows of its neighbours (context_shard.h); absent on one rank.
  ConstView before_segment = {};                    // i32 [rows]
  ConstView tail_segments = {};                     // i32 [rows, taps - 1]
  std::array<ConstView, 2> balanced_segments = {};  // i32 [rows, row_length / 2] each
  [[nodiscard]] int64_t tokens() const { return rows * row_length; }
};

// What a context rank attends for in place of its own shard: queries of one balanced half shard, and their outputs.
struct BalancedHalf {
  Tensor q, o, lse;
};
// What backward needs of a layer's parts. Views of x and h are the layer's, not kept here.
struct AttentionSaved {
  Tensor q_proj, k_proj, v;  // projections; q_proj holds the output gate too
  Tensor q, k;               // after norm and rotation
  Tensor q_rstd, k_rstd;     // absent without q/k norm
  Tensor o, lse;
  Tensor row_k, row_v;                 // context ranks: of the whole rows; k and v are gone then
  std::array<BalancedHalf, 2> halves;  // balanced context ranks: q and lse are here
};
struct DeltaSaved {
  Tensor qkv, z, ba;  // projections
  Tensor mixed;       // after convolution and SiLU
  Tensor q, k, v, beta, g;
  Tensor o, rstd, chunk_states;
  // Context ranks: what came from the shards before; absent on the first one.
  Tensor conv_tail;      // inputs of the convolution right before the shard
  Tensor initial_state;  // of the delta rule
  Tensor transitions;    // of all shards, for more than two
};
struct DenseSaved {
  Tensor gate_up;
};
// One chunk of a layer's tokens on its way through the experts (moe_ring.h).
struct MoeSaved;
struct MoeChunk {
  Tensor expert, weight;  // of the whole ring's tokens; absent on one rank, where they are the router's
  Request routing;        // of the exchanges of these two
  Tensor offsets, slot_of_row, row_of_slot, wanted;  // ragged sort
  Tensor rows, gate_up;                              // of the experts
  [[nodiscard]] ConstView choices(const MoeSaved& saved) const;
  [[nodiscard]] ConstView combine_weights(const MoeSaved& saved) const;
};
struct MoeSaved {
  int64_t rows = 1;               // that the tokens belong to, of equal length
  Tensor logits, expert, weight;  // router
  std::vector<MoeChunk> chunks;
  Tensor shared_gate_up, shared_weight;  // absent without shared expert
};
inline ConstView MoeChunk::choices(const MoeSaved& saved) const {
  return expert.empty() ? saved.expert : expert;
}
inline ConstView MoeChunk::combine_weights(const MoeSaved& saved) const {
  return weight.empty() ? saved.weight : weight;
}
struct LayerSaved {
  Tensor x;               // the layer's input: always kept
  Tensor kept_experts;    // the router's choices, kept when everything else is recomputed
  bool complete = false;  // the rest below is there
  Tensor normed1, rstd1, h, normed2, rstd2;
  AttentionSaved attention;
  DeltaSaved delta;
  DenseSaved dense;
  MoeSaved moe;
};

// y = mixer(x) and its backward; x is normed; dx is returned. Weights are the layer's, gathered.
[[nodiscard]] Tensor attention_forward(ModelContext& context, const BatchView& batch,
                                       const GatheredWeights& weights, ConstView x, AttentionSaved& saved);
[[nodiscard]] Tensor attention_backward(ModelContext& context, const BatchView& batch,
                                        const GatheredWeights& weights, int layer, ConstView x,
                                        AttentionSaved& saved, ConstView dy);
[[nodiscard]] Tensor delta_forward(ModelContext& context, const BatchView& batch,
                                   const GatheredWeights& weights, ConstView x, DeltaSaved& saved);
[[nodiscard]] Tensor delta_backward(ModelContext& context, const BatchView& batch,
                                    const GatheredWeights& weights, int layer, ConstView x, DeltaSaved& saved,
                                    ConstView dy);
// The output of an MLP is the end of a layer: where a layer is recomputed for its backward, nothing needs it.
enum class MlpOutput : uint8_t { kWanted, kUnused };
[[nodiscard]] Tensor dense_forward(ModelContext& context, const GatheredWeights& weights, ConstView x,
                                   DenseSaved& saved, MlpOutput output);
[[nodiscard]] Tensor dense_backward(ModelContext& context, const GatheredWeights& weights, int layer,
                                    ConstView x, DenseSaved& saved, ConstView dy);
// forced: i32 [tokens, top_k] choices to take instead of the router's, or empty.
[[nodiscard]] Tensor moe_forward(ModelContext& context, const BatchView& batch,
                                 const GatheredWeights& weights, ConstView x, ConstView forced,
                                 MoeSaved& saved, MlpOutput output);
[[nodiscard]] Tensor moe_backward(ModelContext& context, const GatheredWeights& weights, int layer,
                                  ConstView x, MoeSaved& saved, ConstView dy);

// Tokens per expert of one MoE layer, then the (token, expert) pairs that were dropped; of this rank's experts.
using ExpertCounts = std::vector<int64_t>;

class Decoder {
 public:
  explicit Decoder(const ModelContext& context);

  // The final hidden states (before the final norm). keep_all[i]: layer i keeps what backward needs; otherwise only its
  // input and the experts chosen, and backward recomputes. saved may be null: scoring, nothing is kept.
  // counts may be null; else receives one entry per MoE layer.
  [[nodiscard]] Tensor forward(const BatchView& batch, const std::vector<bool>& keep_all,
                               std::vector<LayerSaved>* saved, std::vector<ExpertCounts>* counts);
  // Adds every parameter gradient of embedding and layers to the store; frees what it used of `saved`.
  void backward(const BatchView& batch, std::vector<LayerSaved>& saved, Tensor d_hidden);
  // backward comes soon: the weights it begins with are on their way from now on.
  void prefetch_backward(const std::vector<LayerSaved>& saved) {
    if (!saved.empty())
      context_.store.prefetch(static_cast<int>(saved.size()) - 1, backward_phase(saved.back()));
  }

 private:
  // out: the layer's output, or empty when only what backward needs is wanted.
  void layer_forward(const BatchView& batch, int layer, const GatheredWeights& weights, ConstView x,
                     LayerSaved& saved, View out);
  [[nodiscard]] Tensor layer_backward(const BatchView& batch, int layer, const GatheredWeights& weights,
                                      LayerSaved& saved, ConstView dy);
  [[nodiscard]] static Phase backward_phase(const LayerSaved& saved) {
    return saved.complete ? Phase::kBackward : Phase::kRemat;
  }
  [[nodiscard]] ConstView forced_experts(const BatchView& batch, int layer) const;

  ModelContext context_;
  std::vector<int> moe_index_;  // per layer: its number among the MoE layers, or -1
};

// y = x W^T in f32; dx (+)= dy W and dW (+)= dy^T x with the context's compute type. x [rows, in], W [out, in].
[[nodiscard]] Tensor linear_forward(const ModelContext& context, ConstView x, ConstView weight,
                                    const char* name);
[[nodiscard]] Tensor linear_input_gradient(const ModelContext& context, ConstView dy, ConstView weight,
                                           const char* name);
void add_linear_input_gradient(const ModelContext& context, ConstView dy, ConstView weight, View dx);
void linear_weight_gradient(const ModelContext& context, ConstView dy, ConstView x,
                            const GradientTarget& target);

}  // namespace lathe
