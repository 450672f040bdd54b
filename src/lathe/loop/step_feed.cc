#include "lathe/loop/step_feed.h"

#include <utility>

namespace lathe {

void StepFeed::read_ahead() {
  if (has_data_) return;
  const double start = steady_seconds();
  data_ = build_step_data(config_, batching_, source_.next());
  count_ = static_cast<int64_t>(data_.micro_batches.size());
  has_data_ = true;
  ready_ = false;
  prepared_.clear();
  data_s_ = steady_seconds() - start;
}

bool StepFeed::begin_step(Engine& engine, Engine* reference, const StopCheck& stop) {
  read_ahead();
  if (ready_ || (!repeats() && reference == nullptr)) return true;
  // Log-probs are put into the host's micro-batches, so that leaving off half-way loses nothing but time.
  for (MicroBatch& host : data_.micro_batches) {
    const bool need_reference = reference != nullptr && host.ref_logprobs.empty();
    const bool need_old = repeats() && host.old_logprobs.empty();
    if (need_reference) host.ref_logprobs = reference->score(reference->prepare(host)).logprobs;
    if (need_old) host.old_logprobs = engine.score(engine.prepare(host)).logprobs;
    if ((need_reference || need_old) && stop()) return false;
  }
  for (MicroBatch& host : data_.micro_batches) prepared_.push_back(engine.prepare(std::move(host)));
  data_.micro_batches.clear();
  ready_ = true;
  return true;
}

std::shared_ptr<PreparedMicroBatch> StepFeed::micro_batch(Engine& engine, int64_t index) {
  const auto i = static_cast<size_t>(index);
  return ready_ ? prepared_[i] : engine.prepare(std::move(data_.micro_batches[i]));
}

StepInfo StepFeed::end_step() {
  StepInfo info{.metrics = data_.metrics,
                .trained_tokens = data_.trained_tokens,
                .reward_mean = data_.reward_mean,
                .data_s = std::exchange(data_s_, 0)};
  if (++iteration_ < config_.grpo.num_iterations) return info;
  iteration_ = 0;
  has_data_ = false;
  prepared_.clear();
  return info;
}

StepPosition StepFeed::position() const {
  return {.batch = has_data_ ? data_.position : source_.position(), .iteration = iteration_};
}

}  // namespace lathe
