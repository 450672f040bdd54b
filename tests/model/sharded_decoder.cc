#include "model/sharded_decoder.h"

#include <mutex>

#include "lathe/model/context_shard.h"

#include "support/dropping_communicator.h"
#include "support/random_parameters.h"
#include "support/run_ranks.h"

namespace lathe::test {
namespace {

// The tokens of one rank, cut out of arrays of whole rows.
struct Cut {
  int64_t rows, row_length, shard, index;
  [[nodiscard]] int64_t at(int64_t i) const {  // place of local token i in the whole rows
    return i / shard * row_length + index * shard + i % shard;
  }
  template <typename T>
  [[nodiscard]] std::vector<T> of(const std::vector<T>& whole, int64_t width = 1) const {
    std::vector<T> out;
    if (whole.empty()) return out;
    for (int64_t i = 0; i < rows * shard; ++i) {
      const auto from = whole.begin() + at(i) * width;
      out.insert(out.end(), from, from + width);
    }
    return out;
  }
};

std::vector<int32_t> positions_of(const std::vector<int32_t>& segments, int64_t row_length) {
  std::vector<int32_t> out(segments.size(), 0);
  for (size_t t = 1; t < segments.size(); ++t) {
    const bool goes_on =
        t % static_cast<size_t>(row_length) != 0 && segments[t] != 0 && segments[t] == segments[t - 1];
    out[t] = goes_on ? out[t - 1] + 1 : 0;
  }
  return out;
}

struct Whole {
  std::mutex mutex;
  std::map<std::string, HostArray> values;
};

void add_results(const ShardedRun& run, const Device& device, const Cut& cut, const HostArray& hidden,
                 ParameterStore& store, Whole& whole) {
  const std::lock_guard lock(whole.mutex);
  HostArray& out = whole.values["hidden"];
  if (out.shape.rank() == 0) out = HostArray(Shape{run.rows * cut.row_length, run.config.hidden_size});
  const int64_t width = run.config.hidden_size;
  for (int64_t i = 0; i < cut.rows * cut.shard; ++i)
    std::copy_n(hidden.values.begin() + i * width, width, out.values.begin() + cut.at(i) * width);
  for (const Parameter& parameter : store.parameters()) {
    HostArray& gradient = whole.values[parameter.spec->name()];
    if (gradient.shape.rank() == 0) gradient = HostArray(parameter.spec->shape);
    const HostArray here = to_host(device, parameter.gradient);
    std::copy(here.values.begin(), here.values.begin() + parameter.shard.size(),
              gradient.values.begin() + parameter.shard.begin);
  }
}

void run_rank(const ShardedRun& run, ThreadWorld& world, int rank, Whole& whole) {
  Device device(run.device);
  const std::unique_ptr<Communicator> held =
      drop_exchange(world.communicator(rank, *device.memory), run.dropped);
  Communicator& communicator = *held;
  ParameterStore store(device, communicator, layout_from_names(run.config, HfNaming{}), {});
  fill_parameters(store, 3);
  Decoder decoder({device, communicator, store, run.config, run.options});

  const int size = communicator.size(kAxisContext);
  const int index = communicator.index(kAxisContext);
  const int64_t row_length = static_cast<int64_t>(run.segments.size()) / run.rows;
  const Cut cut{run.rows, row_length, row_length / size, index};
  const auto place = [&](const std::vector<int32_t>& values) {
    Tensor to = device.indices(Shape{static_cast<int64_t>(values.size())}, "index");
    device.memory->copy_from_host(to, values.data());
    return to;
  };
  std::vector<int32_t> all_ids(run.segments.size());
  HostArray d_hidden = random_array({run.rows * row_length, run.config.hidden_size}, 5);
  for (size_t t = 0; t < all_ids.size(); ++t) {
    all_ids[t] = static_cast<int32_t>((t * 7 + t / 3) % static_cast<size_t>(run.config.vocab_size));
    if (run.segments[t] != 0) continue;
    for (int64_t i = 0; i < run.config.hidden_size; ++i)
      d_hidden[static_cast<int64_t>(t) * run.config.hidden_size + i] = 0;
  }
  const Tensor ids = place(cut.of(all_ids));
  const Tensor segments = place(cut.of(run.segments));
  const Tensor positions = place(cut.of(positions_of(run.segments, row_length)));
  const ContextShard context =
      place_context_shard(device, run.segments, run.rows, run.config.linear_conv_kernel_dim, size, index);
  BatchView batch{.rows = run.rows,
                  .row_length = cut.shard,
                  .ids = ids,
                  .segments = segments,
                  .positions = positions,
                  .forced_experts = {}};
  const Tensor forced = place(cut.of(run.forced, run.config.num_experts_per_tok));
  if (!run.forced.empty()) {
    batch.forced_experts.push_back(
        forced.view().reshape(Shape{batch.tokens(), run.config.num_experts_per_tok}));
  }
  context.describe(batch);

  std::vector<LayerSaved> saved;
  const std::vector<bool> keep(run.config.layers.size(), run.keep_all);
  const HostArray hidden = to_host(device, decoder.forward(batch, keep, &saved, nullptr));
  decoder.backward(batch, saved,
                   to_device(device, HostArray(Shape{batch.tokens(), run.config.hidden_size},
                                               cut.of(d_hidden.values, run.config.hidden_size))));
  store.wait_reductions();
  store.reduce_replicas();
  store.complete_gradients();
  add_results(run, device, cut, hidden, store, whole);
}

}  // namespace

ModelConfig small_config(std::vector<LayerKind> layers) {
  ModelConfig c;
  c.family = "qwen3_5";
  c.vocab_size = 31;
  c.hidden_size = 18;
  c.layers = std::move(layers);
  c.norm_offset = 1;
  c.tie_word_embeddings = true;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 6;
  c.rotary_dim = 4;
  c.qk_norm = true;
  c.attn_output_gate = true;
  c.linear_num_key_heads = 2;
  c.linear_num_value_heads = 4;
  c.linear_key_head_dim = 7;
  c.linear_value_head_dim = 5;
  c.intermediate_size = 13;
  return c;
}

std::map<std::string, HostArray> run_sharded(const ShardedRun& run) {
  Whole whole;
  run_ranks_of(run.mesh, [&](ThreadWorld& world, int rank) { run_rank(run, world, rank, whole); });
  return whole.values;
}

}  // namespace lathe::test
