// Checkpoints of a run: what goes into them, and when the loop hears of their end.
#include <filesystem>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/loop/trainer.h"
#include "lathe/model/checkpoint.h"

namespace lathe {

TrainState Trainer::current_state() {
  TrainState state;
  state.version = options_.version;
  state.counters = engine_->counters();
  state.micro_batches = micro_batches_;
  state.step_micro_batches = micro_batches_ > 0 ? feed_.micro_batches() : 0;
  state.position = feed_.position();
  const BatchPosition& batch = state.position.batch;
  const std::vector<std::string>& files = source_.files();
  const bool within = batch.batch > 0 || state.position.iteration > 0 || micro_batches_ > 0;
  const int64_t used = batch.epoch > 0 ? static_cast<int64_t>(files.size()) : batch.file + (within ? 1 : 0);
  state.files.assign(files.begin(), files.begin() + used);
  if (within) {
    std::error_code code;
    const auto bytes = std::filesystem::file_size(files[static_cast<size_t>(batch.file)], code);
    state.file_bytes = code ? 0 : bytes;
  }
  state.seed = config_.run.seed;
  state.rolling = reporter_->rolling();
  state.base = base_;
  for (const Setting& setting : options_.settings) state.settings[setting.key] = setting.value;
  if (resume_.has_value()) state.branched_from = resume_->state.branched_from;
  return state;
}

uint64_t Trainer::checkpoint_bytes(bool in_step) const {
  constexpr uint64_t kSmallFiles = uint64_t{1} << 20;
  return exported_bytes(*model_.folder) + engine_->state_bytes(*model_.folder, in_step) + kSmallFiles;
}

void Trainer::save_if_due() {
  if (config_.run.save_every == 0 || engine_->step() % config_.run.save_every != 0) return;
  report_pending();
  start_save();
}

void Trainer::start_save() {
  const CheckpointName name{.step = engine_->step(), .micro_batches = micro_batches_};
  if (saved_ == name) return;
  finish_save();
  engine_->check_finite_weights();
  const bool in_step = micro_batches_ > 0;
  auto write = [this, name, in_step, state = current_state(), old_logprobs = feed_.old_logprobs()] {
    folder_->flush_metrics_to_disk();
    const std::string path = folder_->checkpoints().write(name, config_.run.keep, checkpoint_bytes(in_step),
                                                          [&](const std::string& to) {
                                                            engine_->export_to(*model_.folder, to);
                                                            engine_->save_state(*model_.folder, to, in_step);
                                                            write_old_logprobs(to, old_logprobs);
                                                            write_train_state(to, state);
                                                          });
    log_.info("checkpoint: {}", std::filesystem::absolute(path).string());
  };
  engine_->start_save(std::move(write));
  saved_ = name;
  saving_ = true;
}

void Trainer::finish_save() {
  if (!std::exchange(saving_, false)) return;
  try {
    engine_->finish_save();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kRetryable) throw;
    const std::vector<CheckpointName> complete = folder_->checkpoints().complete();
    const std::string newest =
        complete.empty() ? "there is no checkpoint yet"
                         : "the newest checkpoint is " + folder_->checkpoints().path_of(complete.back());
    throw Error(e.kind(), "", e.what(), fmt::format("{}; {}", e.hint(), newest));
  }
  print_(fmt::format("checkpoint: {}", folder_->checkpoints().path_of(*saved_)));
}

}  // namespace lathe
