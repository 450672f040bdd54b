#include "lathe/engine/rehearsal.h"

#include <utility>

#include "lathe/mesh/plan_communicator.h"

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
      out.temperature.push_back(1);
      out.sequence.push_back(static_cast<int32_t>(r));
      out.completion_position.push_back(static_cast<int32_t>(t - 1));
      out.advantage.push_back(0);
    }
    out.overlong.push_back(0);
    out.item.push_back(r);
  }
  return out;
}

RehearsedPeak Engine::rehearse(const MicroBatch& micro_batch, int64_t kept_layers) const {
  Device plan({.name = "plan",
               .threads = 1,
               .isa = device_.options.isa,
               .poison = false,
               .float_type = device_.float_type()});
  const std::unique_ptr<Communicator> communicator =
      communicator_.mesh().size() == 1
          ? make_solo_communicator()
          : make_plan_communicator(communicator_.mesh(), communicator_.rank(), *plan.memory);
  Log silent(false);
  Engine engine(plan, *communicator, config_, store_->layout(), options_, silent);
  engine.keep_last_layers(kept_layers);
  MicroBatch complete = micro_batch;
  // Log-probs that are computed later; they lie on the host and count for nothing.
  for (std::vector<double>* values :
       {&complete.old_logprobs, &complete.ref_logprobs, &complete.rollout_logprobs}) {
    values->resize(static_cast<size_t>(complete.scored()), 0);
  }
  constexpr int kMicroBatches = 2;
  std::vector<std::shared_ptr<PreparedMicroBatch>> prepared;
  for (int i = 0; i < kMicroBatches; ++i) prepared.push_back(engine.prepare(complete));
  for (auto& one : prepared) engine.fwd_bwd(std::move(one));
  std::future<StepResult> update = engine.update();
  static_cast<void>(engine.result_of(update));
  return {plan.memory->peak(), plan.memory->live_at_peak()};
}

}  // namespace lathe
