#include "engine/plan_engine.h"

#include "lathe/engine/rehearsal.h"
#include "lathe/mesh/plan_communicator.h"

namespace lathe::test {

PlanEngine::PlanEngine(const ModelConfig& config, const MeshShape& mesh, int rank,
                       const EngineOptions& options, double seconds_per_byte)
    : clock_(seconds_per_byte),
      device_(std::make_unique<Device>(DeviceOptions{
          .name = "plan", .threads = 1, .isa = chosen_isa(), .poison = false, .float_type = DType::kF32})) {
  device_->queue = make_clock_queue(clock_, 1);
  communicator_ = make_plan_communicator(mesh, rank, *device_->memory, &clock_);
  engine_ = std::make_unique<Engine>(*device_, *communicator_, config, layout_from_names(config, HfNaming{}),
                                     options, silent_);
  engine_->keep_last_layers(config.num_layers());
}

std::vector<LedgerEntry> PlanEngine::exchanged() const {
  return communicator_->ledger()->entries();
}

double PlanEngine::score(const MicroBatch& batch) {
  const auto prepared = engine_->prepare(batch);
  const double begin = clock_.now();
  static_cast<void>(engine_->score(prepared));
  return clock_.now() - begin;
}

double PlanEngine::fwd_bwd(const MicroBatch& batch) {
  const auto prepared = engine_->prepare(batch);
  const double begin = clock_.now();
  engine_->fwd_bwd(prepared);
  engine_->wait_for_device();
  return clock_.now() - begin;
}

MicroBatch scored_row(int64_t row_length) {
  MicroBatch batch = largest_micro_batch(1, row_length);
  batch.old_logprobs.resize(static_cast<size_t>(batch.scored()), 0);
  return batch;
}

}  // namespace lathe::test
