#include "lathe/model/moe_ring.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace lathe {
namespace {

// How a layer's tokens go round.
class Ring {
 public:
  Ring(ModelContext& context, int64_t tokens, int64_t rows)
      : context_(context),
        ranks_(context.communicator.size(kAxesExperts)),
        chunks_(ranks_ == 1 ? 1 : context.options.token_chunks),
        rows_(chunks_ == 1 ? 1 : rows),
        chunk_tokens_(tokens / chunks_) {
    LATHE_CHECK(chunk_tokens_ / rows_ * rows_ * chunks_ == tokens, "{} tokens of {} rows in {} chunks",
                tokens, rows_, chunks_);
    const FlatShard experts =
        flat_shard(context.config.num_experts, ranks_, context.communicator.index(kAxesExperts));
    window_ = {.experts = context.config.num_experts, .first = experts.begin, .count = experts.size()};
  }

  [[nodiscard]] bool alone() const { return ranks_ == 1; }
  [[nodiscard]] int64_t chunks() const { return chunks_; }
  [[nodiscard]] const MoeSortParams& window() const { return window_; }
  [[nodiscard]] int64_t gathered_tokens() const { return ranks_ * chunk_tokens_; }
  [[nodiscard]] int64_t top_k() const { return context_.config.num_experts_per_tok; }
  [[nodiscard]] int64_t slots() const { return gathered_tokens() * top_k(); }
  [[nodiscard]] int64_t capacity() const {
    if (alone()) return slots();
    return expert_buffer_rows(chunk_tokens_, top_k(), ranks_, window_.count,
                              context_.options.ragged_buffer_factor);
  }
  // This rank's tokens of a chunk: of several rows, in a copy that `held` owns.
  [[nodiscard]] ConstView take(ConstView x, int64_t chunk, Tensor& held) const {
    if (rows_ == 1) return x.rows(chunk * chunk_tokens_, chunk_tokens_);
    held = chunk_like(x);
    const int64_t columns = held.view().size() / rows_;
    copy(x, chunk * columns, held, 0, columns);
    return held;
  }
  // Where what the ring gives for these tokens arrives, and how it gets from there to them.
  [[nodiscard]] View landing(View x, int64_t chunk, Tensor& held) const {
    if (rows_ == 1) return x.rows(chunk * chunk_tokens_, chunk_tokens_);
    held = chunk_like(x);
    return held;
  }
  void put(const Tensor& held, int64_t chunk, View x) const {
    if (held.empty()) return;
    const int64_t columns = held.view().size() / rows_;
    copy(held, 0, x, chunk * columns, columns);
  }

  [[nodiscard]] Tensor like(ConstView x, const char* name) const {
    return context_.device.memory->allocate(x.dtype, with_tokens(x, gathered_tokens()),
                                            MemoryKind::kActivations, name);
  }
  [[nodiscard]] Request gather(const char* name, std::span<const GatherPiece> pieces) const {
    return context_.communicator.start_all_gather(exchange(name), pieces);
  }
  [[nodiscard]] Request reduce(const char* name, std::span<const ReducePiece> pieces) const {
    return context_.communicator.start_reduce_scatter(exchange(name), pieces);
  }

  // Calls gather(c), compute(c) and finish(c) for every chunk: compute needs what gather started, finish waits for what
  // compute started.
  template <typename Gather, typename Compute, typename Finish>
  void run(const Gather& gather, const Compute& compute, const Finish& finish) const {
    const bool ahead = context_.options.chunk_pipeline;
    if (ahead) gather(0);
    for (int64_t c = 0; c < chunks_; ++c) {
      if (!ahead) {
        gather(c);
        compute(c);
        finish(c);
        continue;
      }
      compute(c);  // which waits for its own gather, then begins the next
      if (c > 0) finish(c - 1);
    }
    if (ahead) finish(chunks_ - 1);
  }
  [[nodiscard]] bool gathers_ahead(int64_t chunk) const {
    return context_.options.chunk_pipeline && chunk + 1 < chunks_;
  }

 private:
  [[nodiscard]] Tensor chunk_like(ConstView x) const {
    return context_.device.memory->allocate(x.dtype, with_tokens(x, chunk_tokens_), MemoryKind::kActivations,
                                            "moe.chunk");
  }
  void copy(ConstView from, int64_t from_column, View to, int64_t to_column, int64_t columns) const {
    const auto by_row = [this](auto view) { return view.reshape(Shape{rows_, view.size() / rows_}); };
    context_.device.kernels.copy_columns(*context_.device.queue,
                                         {.from = from_column, .to = to_column, .columns = columns},
                                         by_row(from), by_row(to));
  }
  [[nodiscard]] static Shape with_tokens(ConstView x, int64_t tokens) {
    Shape shape{tokens};
    for (int i = 1; i < x.shape.rank(); ++i) shape.append(x.dim(i));
    return shape;
  }
  [[nodiscard]] Exchange exchange(const char* name) const {
    return {.axes = kAxesExperts, .phase = context_.phase, .tensor = name, .channel = Channel::kDevice};
  }

  ModelContext& context_;
  int64_t ranks_;
  int64_t chunks_;
  int64_t rows_;          // of this rank, each with its part of every chunk
  int64_t chunk_tokens_;  // of this rank
  MoeSortParams window_;
};

// What a chunk has on the way.
struct Travelling {
  std::array<Tensor, 3> own;  // this rank's part of what is gathered; then of what arrives
  Tensor tokens;              // gathered: inputs, or cotangents of the outputs
  Request arrives;            // of tokens, and of the routing
  Tensor sums, weight_sums;
  Request leaves;
};

void sort_rows(ModelContext& context, const Ring& ring, ConstView expert, ConstView x, MoeChunk& chunk) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  chunk.offsets = device.indices(Shape{ring.window().count + 1}, "moe.offsets");
  chunk.slot_of_row = device.indices(Shape{ring.capacity()}, "moe.slot_of_row");
  chunk.row_of_slot = device.indices(expert.shape, "moe.row_of_slot");
  chunk.wanted = device.indices(Shape{1}, "moe.wanted");
  device.kernels.moe_sort(queue, ring.window(), expert, chunk.offsets, chunk.slot_of_row, chunk.row_of_slot,
                          chunk.wanted);
  chunk.rows = device.activation(Shape{ring.capacity(), x.dim(1)}, "moe.rows");
  device.kernels.moe_gather(queue, ring.top_k(), x, chunk.slot_of_row, chunk.offsets, chunk.rows);
}

}  // namespace

int64_t expert_buffer_rows(int64_t chunk_tokens, int64_t top_k, int64_t ranks, int64_t experts_here,
                           double factor) {
  if (factor <= 0) return ranks * chunk_tokens * std::min(top_k, experts_here);
  const auto balanced = static_cast<double>(chunk_tokens * top_k);
  return std::min(ranks * chunk_tokens * top_k, static_cast<int64_t>(balanced * factor));
}

void experts_forward(ModelContext& context, const GatheredWeights& weights, ConstView x, MoeSaved& saved,
                     View out) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = context.config;
  const Ring ring(context, x.dim(0), saved.rows);
  const int64_t width = config.moe_intermediate_size;
  saved.chunks.resize(static_cast<size_t>(ring.chunks()));
  std::vector<Travelling> travelling(saved.chunks.size());

  const auto gather = [&](int64_t c) {
    if (ring.alone()) return;
    MoeChunk& chunk = saved.chunks[static_cast<size_t>(c)];
    Travelling& t = travelling[static_cast<size_t>(c)];
    const ConstView expert = ring.take(saved.expert, c, t.own[0]);
    const ConstView weight = ring.take(saved.weight, c, t.own[1]);
    t.tokens = ring.like(x, "moe.tokens, gathered");
    chunk.expert = ring.like(expert, "moe.expert, gathered");
    chunk.weight = ring.like(weight, "moe.weight, gathered");
    const GatherPiece tokens{ring.take(x, c, t.own[2]), t.tokens, 1};
    t.arrives = ring.gather("moe.tokens", {&tokens, 1});
    const std::array<GatherPiece, 2> routing{GatherPiece{expert, chunk.expert, 1},
                                             GatherPiece{weight, chunk.weight, 1}};
    chunk.routing = ring.gather("moe.routing", routing);
  };
  const auto compute = [&](int64_t c) {
    MoeChunk& chunk = saved.chunks[static_cast<size_t>(c)];
    Travelling& t = travelling[static_cast<size_t>(c)];
    t.arrives.wait();
    chunk.routing.wait();
    t.own = {};
    if (ring.gathers_ahead(c)) gather(c + 1);
    sort_rows(context, ring, chunk.choices(saved), ring.alone() ? x : ConstView(t.tokens), chunk);
    t.tokens.reset();
    chunk.gate_up = device.activation(Shape{ring.capacity(), 2 * width}, "moe.gate_up");
    const GroupedMatmulParams product{.trans_w = true};
    device.kernels.grouped_matmul(queue, product, chunk.rows, weights[ParameterRole::kExpertsGateUp],
                                  chunk.offsets, chunk.gate_up);
    if (out.empty()) return;
    Tensor h = device.activation(Shape{ring.capacity(), width}, "moe.h");
    device.kernels.swiglu_forward(queue, chunk.gate_up, chunk.offsets, h);
    Tensor y = device.activation(Shape{ring.capacity(), config.hidden_size}, "moe.expert_out");
    device.kernels.grouped_matmul(queue, product, h, weights[ParameterRole::kExpertsDown], chunk.offsets, y);
    h.reset();
    if (ring.alone()) {
      device.kernels.moe_combine(queue, y, chunk.combine_weights(saved), chunk.row_of_slot, out);
      return;
    }
    t.sums = ring.like(x, "moe.output, sums");
    device.kernels.moe_combine(queue, y, chunk.combine_weights(saved), chunk.row_of_slot, t.sums);
    const ReducePiece sums{t.sums, ring.landing(out, c, t.own[0]), 1, false};
    t.leaves = ring.reduce("moe.output", {&sums, 1});
  };
  const auto finish = [&](int64_t c) {
    Travelling& t = travelling[static_cast<size_t>(c)];
    t.leaves.wait();
    ring.put(t.own[0], c, out);
    t = {};
  };
  ring.run(gather, compute, finish);
}

void experts_backward(ModelContext& context, const GatheredWeights& weights, int layer, MoeSaved& saved,
                      ConstView dy, View dx, View d_weight) {
  Device& device = context.device;
  Queue& queue = *device.queue;
  ParameterStore& store = context.store;
  const Ring ring(context, dy.dim(0), saved.rows);
  const int64_t width = context.config.moe_intermediate_size;
  const int64_t hidden = context.config.hidden_size;
  const GroupedMatmulParams input_gradient{.trans_w = false, .compute = context.options.compute};
  std::vector<Travelling> travelling(saved.chunks.size());

  const auto gather = [&](int64_t c) {
    if (ring.alone()) return;
    Travelling& t = travelling[static_cast<size_t>(c)];
    t.tokens = ring.like(dy, "moe.doutput, gathered");
    const GatherPiece piece{ring.take(dy, c, t.own[0]), t.tokens, 1};
    t.arrives = ring.gather("moe.output", {&piece, 1});
  };
  const auto compute = [&](int64_t c) {
    MoeChunk& chunk = saved.chunks[static_cast<size_t>(c)];
    Travelling& t = travelling[static_cast<size_t>(c)];
    t.arrives.wait();
    t.own = {};
    if (ring.gathers_ahead(c)) gather(c + 1);
    const Shape slots{ring.slots()};
    const ConstView weight = chunk.combine_weights(saved).reshape(slots);
    if (!ring.alone()) {
      t.sums = ring.like(dy, "moe.dtokens, sums");
      t.weight_sums = ring.like(chunk.weight, "moe.dweight, sums");
    }
    const View d_slot = (ring.alone() ? d_weight : t.weight_sums.view()).reshape(slots);
    device.kernels.fill(queue, 0, d_slot);  // slots without a row have nobody to write it
    Tensor d_gate_up = device.activation(Shape{ring.capacity(), 2 * width}, "moe.dgate_up");
    {
      Tensor dy_rows = device.activation(Shape{ring.capacity(), hidden}, "moe.dexpert_out");
      device.kernels.moe_gather(queue, ring.top_k(), ring.alone() ? dy : ConstView(t.tokens),
                                chunk.slot_of_row, chunk.offsets, dy_rows);
      t.tokens.reset();
      Tensor weighted_h = device.activation(Shape{ring.capacity(), width}, "moe.weighted_h");
      {
        Tensor dhp = device.activation(Shape{ring.capacity(), width}, "moe.dh");
        device.kernels.grouped_matmul(queue, input_gradient, dy_rows, weights[ParameterRole::kExpertsDown],
                                      chunk.offsets, dhp);
        device.kernels.weighted_swiglu_backward(queue, dhp, chunk.gate_up, weight, chunk.slot_of_row,
                                                chunk.offsets, d_gate_up, d_slot, weighted_h);
      }
      if (const View target = store.target(ParameterRole::kExpertsDown, layer); !target.empty()) {
        device.kernels.grouped_matmul_weight_gradient(queue, {.compute = context.options.compute}, dy_rows,
                                                      weighted_h, chunk.offsets, target);
      }
    }
    chunk.gate_up.reset();
    if (const View target = store.target(ParameterRole::kExpertsGateUp, layer); !target.empty()) {
      device.kernels.grouped_matmul_weight_gradient(queue, {.compute = context.options.compute}, d_gate_up,
                                                    chunk.rows, chunk.offsets, target);
    }
    chunk.rows.reset();
    Tensor d_rows = device.activation(Shape{ring.capacity(), hidden}, "moe.drows");
    device.kernels.grouped_matmul(queue, input_gradient, d_gate_up, weights[ParameterRole::kExpertsGateUp],
                                  chunk.offsets, d_rows);
    device.kernels.moe_combine(queue, d_rows, {}, chunk.row_of_slot, ring.alone() ? dx : t.sums.view());
    if (ring.alone()) return;
    const ReducePiece tokens{t.sums, ring.landing(dx, c, t.own[0]), 1, false};
    t.leaves = ring.reduce("moe.tokens", {&tokens, 1});
    const ReducePiece routing{t.weight_sums, ring.landing(d_weight, c, t.own[1]), 1, false};
    chunk.routing = ring.reduce("moe.routing", {&routing, 1});
  };
  const auto finish = [&](int64_t c) {
    Travelling& t = travelling[static_cast<size_t>(c)];
    t.leaves.wait();
    saved.chunks[static_cast<size_t>(c)].routing.wait();
    ring.put(t.own[0], c, dx);
    ring.put(t.own[1], c, d_weight);
    t = {};
    saved.chunks[static_cast<size_t>(c)] = {};
  };
  ring.run(gather, compute, finish);
}

void add_expert_counts(ModelContext& context, const MoeSaved& saved, std::span<int64_t> counts) {
  const Device& device = context.device;
  const FlatShard experts = flat_shard(context.config.num_experts, context.communicator.size(kAxesExperts),
                                       context.communicator.index(kAxesExperts));
  std::vector<int64_t> here(static_cast<size_t>(experts.size()));
  for (const MoeChunk& chunk : saved.chunks) {
    device.kernels.moe_counts(*device.queue, chunk.offsets, here);
    for (size_t e = 0; e < here.size(); ++e) counts[static_cast<size_t>(experts.begin) + e] += here[e];
    counts.back() += device.kernels.moe_wanted(*device.queue, chunk.wanted) -
                     std::accumulate(here.begin(), here.end(), int64_t{0});
  }
}

}  // namespace lathe
