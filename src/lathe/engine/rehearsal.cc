#include "lathe/engine/rehearsal.h"

#include <utility>

namespace lathe {

MicroBatch largest_micro_batch(int64_t rows, int64_t row_length) {
  MicroBatch out;
  out.rows = rows;
  out.row_length = row_length;
  out.real_tokens = rows * row_length;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t t = 0; t < row_length; ++t) {
      out.ids.push_back(0);
      out.segment_ids.push_back(1);
      out.positions.push_back(static_cast<int32_t>(t));
      if (t == 0) continue;
      out.hidden_index.push_back(static_cast<int32_t>(r * row_length + t - 1));
      out.targets.push_back(0);
      out.temperature.push_back(1);
      out.sequence.push_back(static_cast<int32_t>(r));
      out.completion_position.push_back(static_cast<int32_t>(t - 1));
      out.advantage.push_back(1);
    }
    out.overlong.push_back(0);
    out.item.push_back(r);
  }
  return out;
}

RehearsedPeak rehearse_step(const DeviceOptions& device, const ModelConfig& config,
                            const ParameterLayout& layout, const EngineOptions& options,
                            const MicroBatch& micro_batch, int64_t kept_layers) {
  Device plan(
      {.name = "plan", .threads = 1, .isa = device.isa, .poison = false, .float_type = device.float_type});
  const std::unique_ptr<Communicator> communicator = make_solo_communicator();
  Log silent(false);
  Engine engine(plan, *communicator, config, layout, options, silent);
  engine.keep_last_layers(kept_layers);
  constexpr int kMicroBatches = 2;
  std::vector<std::shared_ptr<PreparedMicroBatch>> prepared;
  for (int i = 0; i < kMicroBatches; ++i) prepared.push_back(engine.prepare(micro_batch));
  for (auto& one : prepared) engine.fwd_bwd(std::move(one));
  std::future<StepResult> update = engine.update();
  static_cast<void>(engine.result_of(update));
  return {plan.memory->peak(), plan.memory->live_at_peak()};
}

}  // namespace lathe
