// Checkpoints of a run: what goes into them, and when the loop hears of their end.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/loop/rank_errors.h"
#include "lathe/loop/trainer.h"

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
  if (within) state.file_bytes = static_cast<uint64_t>(std::max<int64_t>(source_.bytes(), 0));
  state.seed = config_.run.seed;
  if (leads()) state.rolling = reporter_->rolling();
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

// On the saver's thread. A rank that fails tells the others, which must not wait for it; all hear of it in finish_save.
void Trainer::write_checkpoint(const CheckpointName& name, const TrainState& state,
                               std::vector<std::vector<double>> old_logprobs) {
  try {
    write_share(name, state, std::move(old_logprobs));
  } catch (const PeerSaveError&) {
    throw;
  } catch (...) {  // NOLINT: goes on
    engine_->meet_savers(true);
    throw;
  }
}

// All ranks fill the folder that the leading one has made and will name.
void Trainer::write_share(const CheckpointName& name, const TrainState& state,
                          std::vector<std::vector<double>> old_logprobs) {
  const bool in_step = name.micro_batches > 0;
  for (std::vector<double>& values : old_logprobs) {
    communicator_->all_reduce_sum(
        {.axes = kAxesRows, .phase = Phase::kUpdate, .tensor = "old_logprobs", .channel = Channel::kSaver},
        values);
  }
  const auto fill = [&](const std::string& to) {
    engine_->meet_savers(false);
    engine_->export_to(*model_.folder, to);
    engine_->save_state(*model_.folder, to, in_step);
    engine_->meet_savers(false);
  };
  if (leads()) {
    folder_->flush_metrics_to_disk();
    const std::string path =
        checkpoints_.write(name, config_.run.keep, checkpoint_bytes(in_step), [&](const std::string& to) {
          fill(to);
          write_old_logprobs(to, old_logprobs);
          write_train_state(to, state);
        });
    log_.info("checkpoint: {}", std::filesystem::absolute(path).string());
  } else {
    fill(checkpoints_.unfinished_path_of(name));
  }
  engine_->meet_savers(false);
}

void Trainer::start_save() {
  const CheckpointName name{.step = engine_->step(), .micro_batches = micro_batches_};
  if (saved_ == name) return;
  finish_save();
  engine_->check_finite_weights();
  engine_->start_save([this, name, state = current_state(), old_logprobs = feed_.old_logprobs()] {
    write_checkpoint(name, state, old_logprobs);
  });
  saved_ = name;
  saving_ = true;
}

void Trainer::finish_save() {
  if (!std::exchange(saving_, false)) return;
  std::exception_ptr failure;
  try {
    engine_->finish_save();
  } catch (const PeerSaveError&) {
    failure = std::current_exception();
  } catch (const Error& e) {
    failure = std::current_exception();
    if (e.kind() == ErrorKind::kRetryable) {
      const std::vector<CheckpointName> complete = checkpoints_.complete();
      const std::string newest = complete.empty()
                                     ? "there is no checkpoint yet"
                                     : "the newest checkpoint is " + checkpoints_.path_of(complete.back());
      failure =
          std::make_exception_ptr(Error(e.kind(), "", e.what(), fmt::format("{}; {}", e.hint(), newest)));
    }
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  agree_on_failure(*communicator_, failure);
  print_(fmt::format("checkpoint: {}", checkpoints_.path_of(*saved_)));
}

}  // namespace lathe
