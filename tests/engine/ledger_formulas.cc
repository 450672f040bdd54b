#include "engine/ledger_formulas.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "lathe/grpo/loss_stats.h"

namespace lathe::test {

ModelConfig config_of(const LedgerCase& c) {
  ModelConfig config = tiny_config(c.layers);
  config.num_experts = 8;
  return config;
}

std::string line_of(Phase phase, CollectiveKind kind, const std::string& tensor, AxisSet axes) {
  return fmt::format("{} {} {} over {}", phase_name(phase), collective_name(kind), tensor, axes_text(axes));
}

namespace {

// What a step of this rank exchanges.
class Formulas {
 public:
  Formulas(const LedgerCase& c, const MicroBatch& batch, int rank)
      : case_(c), config_(config_of(c)), rank_(rank), batch_(batch) {
    for (int64_t i = 0; i < c.micro_batches; ++i) {
      for (size_t layer = 0; layer < c.layers.size(); ++layer) add_layer(layer);
      add_tables();
    }
    add_update();
  }
  [[nodiscard]] const Book& book() const { return book_; }

 private:
  static constexpr int64_t kFloat = 4;
  static constexpr int64_t kId = 4;

  [[nodiscard]] int64_t size(AxisSet axes) const { return case_.mesh.size(axes); }
  [[nodiscard]] int64_t index(AxisSet axes) const { return case_.mesh.index(rank_, axes); }
  [[nodiscard]] Phase again() const { return case_.remat ? Phase::kRemat : Phase::kBackward; }
  // The passes of a mixer or an MLP forward.
  [[nodiscard]] std::vector<Phase> forwards() const {
    return case_.remat ? std::vector{Phase::kForward, Phase::kRemat} : std::vector{Phase::kForward};
  }

  void add(Phase phase, CollectiveKind kind, const std::string& tensor, AxisSet axes, int64_t result,
           int64_t wire, int64_t count = 1) {
    if (size(axes) == 1) return;
    Traffic& traffic = book_[line_of(phase, kind, tensor, axes)];
    traffic.count += count;
    traffic.result_bytes += count * result;
    traffic.wire_bytes += count * wire;
  }
  void gather(Phase phase, const std::string& tensor, AxisSet axes, int64_t bytes, int64_t count = 1) {
    add(phase, CollectiveKind::kAllGather, tensor, axes, bytes, bytes * (size(axes) - 1) / size(axes), count);
  }
  void reduce(Phase phase, const std::string& tensor, AxisSet axes, int64_t bytes, int64_t count = 1) {
    add(phase, CollectiveKind::kReduceScatter, tensor, axes, bytes, bytes * (size(axes) - 1) / size(axes),
        count);
  }
  void all_reduce(Phase phase, const std::string& tensor, AxisSet axes, int64_t bytes) {
    add(phase, CollectiveKind::kAllReduce, tensor, axes, bytes, 2 * bytes * (size(axes) - 1) / size(axes));
  }

  // A weight of a layer: gathered before forward and before backward, its gradient reduced once.
  void weight(const std::string& tensor, AxisSet axes, int64_t elements) {
    gather(Phase::kForward, tensor, axes, elements * kFloat);
    gather(again(), tensor, axes, elements * kFloat);
    reduce(Phase::kBackward, tensor, axes, elements * kFloat);
    cut_.emplace(tensor,
                 flat_shard(elements, static_cast<int>(size(axes)), static_cast<int>(index(axes))).size());
  }
  void dense(const std::string& tensor, int64_t elements) {
    weight(tensor + ".weight", kAxesDense, elements);
  }
  void small(const std::string& tensor, int64_t elements) { whole_.emplace(tensor, elements); }

  void add_layer(size_t layer) {
    const ModelConfig& m = config_;
    const std::string at = fmt::format("model.layers.{}.", layer);
    small(at + "input_layernorm.weight", m.hidden_size);
    small(at + "post_attention_layernorm.weight", m.hidden_size);
    if (case_.layers[layer].mixer == MixerKind::kFullAttention) {
      add_attention(at + "self_attn.");
    } else {
      add_delta(at + "linear_attn.");
    }
    if (case_.layers[layer].mlp == MlpKind::kDense) {
      dense(at + "mlp.gate_proj", 2 * m.intermediate_size * m.hidden_size);
      dense(at + "mlp.down_proj", m.intermediate_size * m.hidden_size);
    } else {
      add_experts(at + "mlp.");
    }
  }

  [[nodiscard]] int64_t shard_tokens() const { return batch_.tokens() / case_.mesh.context; }

  void add_attention(const std::string& at) {
    const ModelConfig& m = config_;
    const int64_t queries = m.num_attention_heads * m.head_dim;
    const int64_t keys = m.num_key_value_heads * m.head_dim;
    dense(at + "q_proj", 2 * queries * m.hidden_size);  // with the output gate
    dense(at + "k_proj", keys * m.hidden_size);
    dense(at + "v_proj", keys * m.hidden_size);
    dense(at + "o_proj", queries * m.hidden_size);
    small(at + "q_norm.weight", m.head_dim);
    small(at + "k_norm.weight", m.head_dim);

    // Rank r holds half shards 2r and 2r + 1 and attends for r and 2C - 1 - r.
    const int64_t ranks = case_.mesh.context;
    const int64_t r = index(kAxisContext);
    int64_t strangers = 0;
    for (const int64_t half : {r, 2 * ranks - 1 - r}) strangers += half / 2 == r ? 0 : 1;
    const int64_t moved = strangers * shard_tokens() / 2 * queries * kFloat;
    const int64_t kv = 2 * batch_.tokens() * keys * kFloat;
    const auto exchange = [&](Phase phase) {
      for (const char* halves : {"attention.q", "attention.o"})
        add(phase, CollectiveKind::kSendRecv, halves, kAxisContext, moved, moved);
    };
    for (const Phase phase : forwards()) {
      gather(phase, "attention.kv", kAxisContext, kv);
      exchange(phase);
    }
    reduce(Phase::kBackward, "attention.kv", kAxisContext, kv);
    exchange(Phase::kBackward);
  }

  void add_delta(const std::string& at) {
    const ModelConfig& m = config_;
    const int64_t keys = m.linear_num_key_heads * m.linear_key_head_dim;
    const int64_t values = m.linear_num_value_heads * m.linear_value_head_dim;
    const int64_t mixed = 2 * keys + values;
    dense(at + "in_proj_qkv", mixed * m.hidden_size);
    dense(at + "in_proj_z", values * m.hidden_size);
    dense(at + "in_proj_b", 2 * m.linear_num_value_heads * m.hidden_size);
    dense(at + "out_proj", values * m.hidden_size);
    small(at + "conv1d.weight", mixed * m.linear_conv_kernel_dim);
    small(at + "A_log", m.linear_num_value_heads);
    small(at + "dt_bias", m.linear_num_value_heads);
    small(at + "norm.weight", m.linear_value_head_dim);
    if (case_.delta == DeltaContext::kHeads) {
      add_delta_heads(mixed + 2 * m.linear_num_value_heads, values);
    } else {
      add_delta_states(mixed);
    }
  }

  void add_delta_heads(int64_t inputs, int64_t outputs) {
    std::vector<Phase> phases = forwards();
    phases.push_back(Phase::kBackward);
    const int64_t ranks = case_.mesh.context;
    const auto exchange = [&](Phase phase, const char* tensor, int64_t width) {
      const int64_t bytes = shard_tokens() * width * kFloat;
      add(phase, CollectiveKind::kAllToAll, tensor, kAxisContext, bytes, bytes * (ranks - 1) / ranks);
    };
    for (const Phase phase : phases) {
      exchange(phase, "delta.heads", inputs);
      exchange(phase, "delta.heads_o", outputs);
    }
  }

  void add_delta_states(int64_t mixed) {
    const ModelConfig& m = config_;
    const int64_t ranks = case_.mesh.context;
    const int64_t halo = batch_.rows * (m.linear_conv_kernel_dim - 1) * mixed * kFloat;
    const int64_t has_before = index(kAxisContext) > 0 ? halo : 0;
    const int64_t has_after = index(kAxisContext) + 1 < ranks ? halo : 0;
    const int64_t heads = ranks * batch_.rows * m.linear_num_value_heads * m.linear_key_head_dim * kFloat;
    const int64_t states = heads * m.linear_value_head_dim;
    const int64_t transitions = ranks > 2 ? heads * m.linear_key_head_dim : 0;
    for (const Phase phase : forwards()) {
      add(phase, CollectiveKind::kSendRecv, "delta.conv_halo", kAxisContext, has_before, has_after);
      gather(phase, "delta.state", kAxisContext, states + transitions);
    }
    add(Phase::kBackward, CollectiveKind::kSendRecv, "delta.conv_halo", kAxisContext, has_after, has_before);
    gather(Phase::kBackward, "delta.dstate", kAxisContext, states);
  }

  void add_experts(const std::string& at) {
    const ModelConfig& m = config_;
    const int64_t ring = size(kAxesExperts);
    const int64_t expert = m.moe_intermediate_size * m.hidden_size;
    const int64_t shared = m.shared_expert_intermediate_size * m.hidden_size;
    dense(at + "gate", m.num_experts * m.hidden_size);
    dense(at + "shared_expert.gate_proj", 2 * shared);
    dense(at + "shared_expert.down_proj", shared);
    dense(at + "shared_expert_gate", m.hidden_size);
    weight(at + "experts.0.gate_proj.weight", kAxisFsdp, m.num_experts / ring * 2 * expert);
    weight(at + "experts.0.down_proj.weight", kAxisFsdp, m.num_experts / ring * expert);

    const int64_t chunks = case_.token_chunks;
    const int64_t gathered = ring * (shard_tokens() / chunks);
    const int64_t tokens = gathered * m.hidden_size * kFloat;
    const int64_t slots = gathered * m.num_experts_per_tok;
    for (const Phase phase : forwards()) {
      gather(phase, "moe.tokens", kAxesExperts, tokens, chunks);
      gather(phase, "moe.routing", kAxesExperts, slots * 8, chunks);  // an id and a weight
    }
    reduce(Phase::kForward, "moe.output", kAxesExperts, tokens, chunks);
    gather(Phase::kBackward, "moe.output", kAxesExperts, tokens, chunks);
    reduce(Phase::kBackward, "moe.tokens", kAxesExperts, tokens, chunks);
    reduce(Phase::kBackward, "moe.routing", kAxesExperts, slots * kFloat, chunks);
  }

  // The most tokens that a rank scores, all but the last of each of its trajectories; without replicate_sequence of its
  // shard of them.
  [[nodiscard]] int64_t most_scored() const {
    const int64_t ranks = case_.mesh.context;
    const int64_t length = batch_.row_length / ranks;
    const auto rows = static_cast<int64_t>(kLengths.size());
    int64_t most = 0;
    for (int64_t first = 0; first < rows; first += batch_.rows) {
      std::vector<int64_t> scored(static_cast<size_t>(ranks), 0);
      for (int64_t row = first; row < std::min(first + batch_.rows, rows); ++row) {
        for (int64_t at = 0; at + 1 < kLengths[static_cast<size_t>(row)]; ++at)
          ++scored[static_cast<size_t>(at / length)];
      }
      const int64_t all = std::accumulate(scored.begin(), scored.end(), int64_t{0});
      most = std::max(most, case_.replicate ? all : *std::max_element(scored.begin(), scored.end()));
    }
    return most;
  }

  // Embedding, final norm and head.
  void add_tables() {
    const ModelConfig& m = config_;
    const int64_t table = m.vocab_size * m.hidden_size;
    const int64_t shard =
        flat_shard(table, static_cast<int>(size(kAxesDense)), static_cast<int>(index(kAxesDense))).size();
    gather(Phase::kForward, "model.embed_tokens.weight", kAxesDense, table * kFloat);
    reduce(Phase::kBackward, "model.embed_tokens.weight", kAxesDense, table * kFloat);
    cut_.emplace("model.embed_tokens.weight", shard);
    cut_.emplace("lm_head.weight", shard);
    small("model.norm.weight", m.hidden_size);

    const int64_t ranks = case_.mesh.context;
    std::vector<int64_t> scored(static_cast<size_t>(ranks), 0);
    const int64_t length = batch_.row_length / ranks;
    for (const int32_t at : batch_.hidden_index)
      ++scored[static_cast<size_t>(at % batch_.row_length / length)];
    const int64_t here = index(kAxisContext);
    const int64_t own = scored[static_cast<size_t>(here)];
    // The first id of a shard's row goes to the left.
    add(Phase::kForward, CollectiveKind::kSendRecv, "head.next_token", kAxisContext,
        here + 1 < ranks ? batch_.rows * kId : 0, here > 0 ? batch_.rows * kId : 0);
    const bool chunked = case_.head == HeadMode::kChunked;
    int64_t chunks = 1;
    if (chunked) {
      all_reduce(Phase::kForward, "head.chunks", kAxesDense, 8);
      const int64_t most = most_scored();
      chunks = (most + case_.head_chunk - 1) / case_.head_chunk;
      gather(Phase::kBackward, "lm_head.weight", kAxesDense, table * kFloat, chunks);
      if (case_.replicate) {
        const int64_t token = m.hidden_size * kFloat + kId;  // with its target
        add(Phase::kForward, CollectiveKind::kSendRecv, "head.hidden", kAxisContext,
            (batch_.scored() - own) * token, (ranks - 1) * own * token);
      }
    }
    gather(Phase::kForward, "lm_head.weight", kAxesDense, table * kFloat, chunks);
    reduce(Phase::kBackward, "lm_head.weight", kAxesDense, table * kFloat, chunks);
    if (case_.head == HeadMode::kFused && case_.known)
      all_reduce(Phase::kForward, "head.finite", kAxisContext, 8);
    all_reduce(Phase::kForward, "head.scores", kAxisContext, batch_.scored() * 16);  // log-prob and entropy
  }

  // What ranks hold of the same elements, and the host's numbers.
  void add_update() {
    for (const auto& [tensor, elements] : cut_)
      all_reduce(Phase::kUpdate, tensor, kAxisData, elements * kFloat);
    for (const auto& [tensor, elements] : whole_)
      all_reduce(Phase::kUpdate, tensor, kAxisAll, elements * kFloat);
    const auto numbers = static_cast<int64_t>(std::tuple_size_v<LossStatsNumbers>) + 4;
    all_reduce(Phase::kUpdate, "loss", kAxisAll, size(kAxisAll) * numbers * 8);
    all_reduce(Phase::kUpdate, "grad_norm", kAxesDense, 8);
    int64_t experts = 0;
    for (const LayerKind& layer : case_.layers)
      experts += layer.mlp == MlpKind::kMoe ? config_.num_experts + 1 : 0;
    all_reduce(Phase::kUpdate, "moe.counts", kAxisAll, experts * 8);
  }

  const LedgerCase& case_;
  const ModelConfig config_;
  const int rank_;
  const MicroBatch& batch_;
  std::map<std::string, int64_t> cut_, whole_;  // elements here
  Book book_;
};

}  // namespace

Book expected_book(const LedgerCase& c, const MicroBatch& batch, int rank) {
  return Formulas(c, batch, rank).book();
}

}  // namespace lathe::test
