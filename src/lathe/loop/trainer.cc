#include "lathe/loop/trainer.h"

#include <filesystem>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/loop/memory_check.h"
#include "lathe/loop/memory_report.h"

namespace lathe {
namespace {

RolloutOptions rollout_options(const RunConfig& config, const ModelConfig& model) {
  RolloutOptions options;
  options.vocab_size = model.vocab_size;
  options.skip_bad_lines = config.data.on_bad_line == "skip";
  options.reward_weights = config.grpo.reward_weights;
  options.need_reward = true;
  return options;
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const TrainOptions& options, Log& log,
                 const std::function<void(const std::string&)>& print)
    : config_(config),
      options_(options),
      log_(log),
      print_(print),
      device_options_(device_options(config, &notes_)),
      model_(open_model(config.model.path, log)),
      source_(config.data.rollouts, config.data.trajectories_per_step, rollout_options(config, model_.config),
              log),
      batching_(micro_batch_options(config, model_.config)),
      feed_(config, batching_, source_),
      device_(device_options_),
      communicator_(make_solo_communicator()),
      stop_after_(parse_stop_after(options.stop_after, config.run.steps)) {
  // What can be refused is refused before the weights are read.
  RunFolder::check_usable(config.run.dir, config.run.resume);
  check_memory(config, model_.config, config.data.row_length, /*trains=*/true, available_memory_bytes());
  feed_.read_ahead();
  const EngineOptions engine = engine_options(config, device_options_, &notes_);
  engine_ = std::make_unique<Engine>(device_, *communicator_, model_.config, model_.layout, engine, log_);
  engine_->load(*model_.folder);
  if (config.grpo.reference_initial && config.grpo.beta != 0) {
    EngineOptions frozen = engine;
    frozen.frozen = true;
    frozen.trainable.clear();
    reference_device_ = std::make_unique<Device>(device_options_);
    reference_ = std::make_unique<Engine>(*reference_device_, *communicator_, model_.config, model_.layout,
                                          frozen, log_);
    reference_->load(*model_.folder);
  }
}

bool Trainer::stop_wanted() {
  return false;
}

bool Trainer::submit_step() {
  if (!feed_.begin_step(*engine_, reference_.get(), [this] { return stop_wanted(); })) return false;
  for (; micro_batches_ < feed_.micro_batches(); ++micro_batches_) {
    if (stop_wanted()) return false;
    engine_->fwd_bwd(feed_.micro_batch(*engine_, micro_batches_));
  }
  micro_batches_ = 0;
  if (!gradients_written_ && !options_.gradients_out.empty()) {
    engine_->write_gradients(options_.gradients_out);
    gradients_written_ = true;
  }
  StepInfo info = feed_.end_step();
  SubmittedStep submitted{std::move(info), engine_->update()};
  // The device works on this step while the last one is reported.
  report_pending();
  pending_ = std::move(submitted);
  if (!config_.optimizer.skip_nonfinite)
    report_pending();  // which may end the run: nothing may come after it
  return true;
}

void Trainer::report_pending() {
  if (!pending_.has_value()) return;
  const StepResult result = engine_->result_of(pending_->result);
  reporter_->report(result, std::move(pending_->info), notes_);
  pending_.reset();
  if (result.update.stops_run) end_at_nonfinite(result);
}

void Trainer::end_at_nonfinite(const StepResult& result) {
  std::string saved = "the weights before it are saved";
  try {
    save();
  } catch (const Error& e) {
    saved = fmt::format("nothing is saved ({})", e.what());
  }
  throw Error(
      ErrorKind::kGate, fmt::format("step {}", result.step),
      fmt::format("{}; optimizer.skip_nonfinite is false; {}", result.update.reason, saved),
      "look at that step's data; a lower learning rate often helps; skip_nonfinite: true skips such steps");
}

void Trainer::read_ahead() {
  try {
    feed_.read_ahead();
  } catch (const Error&) {
    report_pending();
    save();
    throw;
  }
}

void Trainer::save() {
  engine_->check_finite_weights();
  const std::string where =
      folder_->save_checkpoint(engine_->step(), config_.run.keep, [this](const std::string& to) {
        engine_->export_to(*model_.folder, to);
        engine_->save_trainer_state(to);
      });
  log_.info("checkpoint: {}", std::filesystem::absolute(where).string());
  print_(fmt::format("checkpoint: {}", where));
}

int Trainer::run() {
  folder_ = std::make_unique<RunFolder>(config_.run.dir, config_.run.resume, options_.resolved_config, log_);
  reporter_ = std::make_unique<StepReporter>(config_, device_, *folder_, log_);
  for (const auto& [key, choice] : notes_) log_.info("{}: {}", key, choice);
  engine_->plan_remat(config_.data.rows_per_micro_batch, config_.data.row_length);
  notes_.emplace_back("remat.policy", engine_->remat_choice());
  reporter_->set_planned_memory(rehearse_largest(*engine_, feed_.ahead().micro_batches).use.total());
  reporter_->set_startup_seconds(steady_seconds() - options_.process_start_s);
  while (engine_->step() < config_.run.steps) {
    if (!submit_step()) break;
    if (engine_->step() < config_.run.steps) read_ahead();
  }
  report_pending();
  save();
  return 0;
}

}  // namespace lathe
