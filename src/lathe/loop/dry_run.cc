// What `lathe train --dry-run` says: everything the run would use is read, checked and packed.
#include "lathe/loop/memory_report.h"
#include "lathe/loop/trainer.h"

namespace lathe {

void Trainer::dry_run() {
  if (is_finished()) {
    print_(fmt::format("nothing to do: {} has all {} steps", resume_->path, config_.run.steps));
    return;
  }
  if (resume_.has_value()) print_(fmt::format("goes on from: {}", resume_->path));
  // Every batch that the run would use is read, checked and packed; the first one is shown.
  const int64_t needed =
      (config_.run.steps - engine_->step() + config_.grpo.num_iterations - 1) / config_.grpo.num_iterations;
  const StepData& data = feed_.ahead();
  int64_t batches = 1;
  int64_t tokens = data.trained_tokens;
  for (; batches < needed && source_.has_next_of_epoch(); ++batches) {
    tokens += build_step_data(config_, batching_, source_.next()).trained_tokens;
  }
  engine_->plan_remat(config_.data.rows_per_micro_batch, config_.data.row_length);
  print_(fmt::format("model: {} ({}), {} layers, {} tensors read, {} passed through", config_.model.path,
                     model_.config.family, model_.config.num_layers(), model_.layout.hf_tensors.size(),
                     model_.layout.passthrough.size()));
  print_(fmt::format("trains: {} of {} tensors", engine_->store().trained_tensors().size(),
                     model_.layout.hf_tensors.size()));
  print_(fmt::format("rollouts: {} file(s), {} batch(es) of the run checked, {} tokens to train on",
                     source_.files().size(), batches, tokens));
  print_(fmt::format("first batch: {}", data.file));
  for (const auto& [name, value] : data.metrics) print_(fmt::format("  {}: {:.6g}", name, value));
  print_(fmt::format("plan: {} steps of {} micro-batches ({} x {} tokens)", config_.run.steps,
                     data.micro_batches.size(), config_.data.rows_per_micro_batch, config_.data.row_length));
  const RehearsedPeak peak = rehearse_largest(*engine_, data.micro_batches);
  print_(fmt::format("memory at the peak of a step: {}", bytes_text(peak.use.total())));
  for (const std::string& line : memory_report(peak.use, peak.live)) print_("  " + line);
  print_(fmt::format("checkpoint: {} each", bytes_text(static_cast<int64_t>(checkpoint_bytes(false)))));
  for (const auto& [key, choice] : notes_) print_(fmt::format("{}: {}", key, choice));
  print_(fmt::format("remat.policy: {}", engine_->remat_choice()));
  print_("dry run: everything was read and checked, nothing was trained");
}

}  // namespace lathe
