#include "lathe/loop/step_feed.h"

#include <algorithm>
#include <utility>

#include "lathe/core/error.h"

namespace lathe {

void StepFeed::read() {
  const double start = steady_seconds();
  position_ = source_.position();
  reading_ = true;  // stays when it fails: the next step is still to be made of that batch
  StepBatch batch = source_.next();
  position_ = batch.position;  // the same batch, after the beginning of an epoch
  wait_s_ = batch.waited_s;
  data_ = build_step_data(config_, batching_, std::move(batch));
  count_ = static_cast<int64_t>(data_.micro_batches.size());
  has_data_ = true;
  reading_ = false;
  ready_ = false;
  scored_old_ = false;
  prepared_.clear();
  data_s_ = steady_seconds() - start;
}

void StepFeed::go_on(int64_t iteration, std::vector<std::vector<double>> old_logprobs) {
  iteration_ = iteration;
  if (old_logprobs.empty()) return;
  bool fits = old_logprobs.size() == data_.micro_batches.size();
  for (size_t i = 0; fits && i < old_logprobs.size(); ++i) {
    MicroBatch& host = data_.micro_batches[i];
    fits = static_cast<int64_t>(old_logprobs[i].size()) == host.all_scored;
    if (!fits) break;
    const auto first = old_logprobs[i].begin() + host.first_scored;
    host.old_logprobs.assign(first, first + host.scored());
  }
  if (!fits) {
    data_error(data_.file, "has other scored tokens than when the run left off in the middle of it",
               "put the file back that the run began with");
  }
  scored_old_ = true;
}

std::vector<std::vector<double>> StepFeed::old_logprobs() const {
  std::vector<std::vector<double>> out;
  if (!scored_old_ || !ready_) return out;
  for (const auto& prepared : prepared_) {
    const MicroBatch& host = prepared->host;
    std::vector<double>& all = out.emplace_back(static_cast<size_t>(host.all_scored), 0.0);
    std::copy(host.old_logprobs.begin(), host.old_logprobs.end(), all.begin() + host.first_scored);
  }
  return out;
}

bool StepFeed::begin_step(Engine& engine, Engine* reference, const StopCheck& stop) {
  LATHE_CHECK(has_data_, "a step without a batch");
  if (ready_ || (!repeats() && reference == nullptr)) return true;
  // Log-probs are put into the host's micro-batches, so that leaving off half-way loses nothing but time.
  const bool need_reference = reference != nullptr && !data_.has_ref_logprobs;
  const bool need_old = repeats() && !data_.has_old_logprobs && !scored_old_;
  // Both engines exchange on one channel: one after the other.
  if (need_reference) static_cast<void>(engine.wait_for_device());
  for (MicroBatch& host : data_.micro_batches) {
    if (need_reference) host.ref_logprobs = reference->score(reference->prepare(host)).logprobs;
    if (need_old) host.old_logprobs = engine.score(engine.prepare(host)).logprobs;
    if ((need_reference || need_old) && stop()) return false;
  }
  if (need_old) scored_old_ = true;
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
                .data_s = std::exchange(data_s_, 0),
                .wait_s = std::exchange(wait_s_, 0)};
  if (++iteration_ < config_.grpo.num_iterations) return info;
  iteration_ = 0;
  has_data_ = false;
  prepared_.clear();
  return info;
}

StepPosition StepFeed::position() const {
  return {.batch = has_data_ || reading_ ? position_ : source_.position(), .iteration = iteration_};
}

}  // namespace lathe
