#include "engine/tiny_model.h"

#include <cmath>

#include "lathe/core/rng.h"
#include "lathe/data/packing.h"

#include "support/kernel_test.h"
#include "support/random_parameters.h"

namespace lathe::test {

ModelConfig tiny_config(std::vector<LayerKind> layers, bool tied) {
  ModelConfig c;
  c.family = "qwen3_5_moe";
  c.vocab_size = 29;
  c.hidden_size = 22;
  c.layers = std::move(layers);
  c.norm_offset = 1;
  c.tie_word_embeddings = tied;
  c.num_attention_heads = 6;
  c.num_key_value_heads = 3;
  c.head_dim = 10;
  c.rotary_dim = 4;
  c.qk_norm = true;
  c.attn_output_gate = true;
  c.linear_num_key_heads = 2;
  c.linear_num_value_heads = 6;
  c.linear_key_head_dim = 7;
  c.linear_value_head_dim = 5;
  c.intermediate_size = 17;
  c.num_experts = 5;
  c.num_experts_per_tok = 3;
  c.moe_intermediate_size = 9;
  c.shared_expert_intermediate_size = 12;
  return c;
}

namespace {

int32_t pick(const CounterRng& rng, uint64_t index, int64_t below) {
  return static_cast<int32_t>(rng.uniform(index) * static_cast<double>(below));
}

}  // namespace

std::vector<TinyTrajectory> random_trajectories(const ModelConfig& config, const std::vector<int>& lengths,
                                                uint64_t seed) {
  std::vector<TinyTrajectory> out;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const CounterRng rng(seed, i);
    TinyTrajectory t;
    const int prompt = 1 + lengths[i] / 3;
    for (int j = 0; j < lengths[i]; ++j) {
      (j < prompt ? t.prompt : t.completion)
          .push_back(pick(rng, static_cast<uint64_t>(j), config.vocab_size));
    }
    if (t.completion.empty()) t.completion.push_back(0);
    t.advantage = rng.normal(1000);
    out.push_back(t);
  }
  return out;
}

std::vector<MicroBatch> tiny_batches(const std::vector<TinyTrajectory>& trajectories,
                                     const TinyPacking& packing, bool with_old, const RowShare& share) {
  std::vector<Trajectory> full;
  std::vector<std::vector<double>> advantages;
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    Trajectory t;
    t.line = static_cast<int64_t>(i) + 1;
    t.prompt_ids = trajectories[i].prompt;
    t.completion_ids = trajectories[i].completion;
    t.completion_mask.assign(t.completion_ids.size(), 1);
    const CounterRng rng(99, i);
    for (size_t j = 0; with_old && j < t.completion_ids.size(); ++j)
      t.old_logprobs.push_back(-3 + 0.3 * rng.normal(j));
    lengths.push_back(t.tokens());
    advantages.push_back({trajectories[i].advantage});
    full.push_back(std::move(t));
  }
  const PackingOptions options{.row_length = packing.row_length,
                               .rows_per_micro_batch = packing.rows,
                               .max_segments = 64,
                               .segment_alignment = packing.alignment,
                               .pad_at_start = false,
                               .pad_alignment = 4096};
  std::vector<MicroBatch> out;
  for (const PackedMicroBatch& packed : pack(lengths, options)) {
    MicroBatchOptions building;
    building.share = share;
    out.push_back(build_micro_batch(packed, full, advantages, packing.row_length, building));
  }
  return out;
}

DeviceOptions ref_f64() {
  return {.name = "ref", .threads = 1, .isa = Isa::kAvx2, .poison = true, .float_type = DType::kF64};
}

DeviceOptions cpu_f32(int threads) {
  return {.name = "cpu", .threads = threads, .isa = chosen_isa(), .poison = true, .float_type = DType::kF32};
}

EngineOptions tiny_options() {
  EngineOptions options;
  options.optimizer.learning_rate = 1e-3;
  options.remat = RematPolicy::kNone;
  options.head_chunk = 16;
  options.delta_rule_chunk = 16;
  return options;
}

TinyEngine::TinyEngine(const ModelConfig& config, const DeviceOptions& device, const EngineOptions& options,
                       uint64_t seed, const CommunicatorFactory& communicator)
    : config_(config),
      device_(std::make_unique<Device>(device)),
      communicator_(communicator ? communicator(*device_->memory) : make_solo_communicator()),
      log_(std::make_unique<Log>(false)) {
  engine_ = std::make_unique<Engine>(*device_, *communicator_, config_,
                                     layout_from_names(config_, HfNaming{}), options, *log_);
  engine_->device_thread().run([&] { fill_parameters(engine_->store(), seed); });
}

StepResult TinyEngine::step(const std::vector<MicroBatch>& batches) {
  for (const MicroBatch& batch : batches) engine_->fwd_bwd(engine_->prepare(batch));
  auto update = engine_->update();
  return engine_->result_of(update);
}

std::vector<std::vector<double>> TinyEngine::gradients(const std::vector<MicroBatch>& batches) {
  for (const MicroBatch& batch : batches) engine_->fwd_bwd(engine_->prepare(batch));
  engine_->wait_for_device();
  std::vector<std::vector<double>> out;
  engine_->device_thread().run([&] {
    engine_->store().complete_gradients();
    for (const Parameter& parameter : engine_->store().parameters()) {
      out.push_back(parameter.trains ? to_host(*device_, parameter.gradient).values : std::vector<double>());
    }
  });
  return out;
}

std::vector<std::vector<double>> TinyEngine::values() {
  std::vector<std::vector<double>> out;
  engine_->device_thread().run([&] {
    for (const Parameter& parameter : engine_->store().parameters()) {
      out.push_back(to_host(*device_, parameter.value()).values);
    }
  });
  return out;
}

}  // namespace lathe::test
