#include "lathe/loop/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/loop/agreement.h"
#include "lathe/loop/ledger_file.h"
#include "lathe/loop/memory_check.h"
#include "lathe/loop/memory_report.h"
#include "lathe/loop/rank_errors.h"
#include "lathe/mesh/ledger.h"
#include "lathe/mesh/mpi.h"

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

// Locked by the leading rank; the others go on when that is done.
std::unique_ptr<RunFolder> run_folder(const RunConfig& config, const TrainOptions& options,
                                      Communicator& communicator, Log& log) {
  std::unique_ptr<RunFolder> folder;
  if (communicator.rank() == 0) {
    RunFolder::check_usable(config.run.dir, config.run.resume);
    if (!options.dry_run) folder = std::make_unique<RunFolder>(config.run.dir, config.run.resume, log);
  }
  communicator.barrier(Channel::kHost);
  return folder;
}

// Before the model is opened: another model.path is named, not looked for. The leading rank finds it.
std::optional<ResumePoint> resume_point(const RunConfig& config, const TrainOptions& options,
                                        Communicator& communicator, Log& log) {
  std::optional<ResumePoint> point;
  if (communicator.rank() == 0) point = find_resume_point(config.run, log);
  std::vector<std::string> told;
  if (point.has_value()) told = {point->path, point->state.branched_from};
  told = leaders_texts(communicator, told);
  if (!told.empty() && !point.has_value()) point = resume_point_at(told[0], told[1]);
  if (point.has_value()) check_same_settings(*point, options.settings);
  return point;
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const TrainOptions& options, Log& log,
                 const std::function<void(const std::string&)>& print)
    : config_(config),
      options_(options),
      log_(log),
      print_([&log, print](const std::string& line) {
        log.hide_bar();
        print(line);
      }),
      device_options_(device_options(config, &notes_)),
      device_(device_options_),
      communicator_(options.communicator ? options.communicator(*device_.memory)
                                         : make_communicator(mesh_shape(config.mesh), *device_.memory)),
      folder_(told_to_ranks(*communicator_, log,
                            [&] { return run_folder(config, options, *communicator_, log); })),
      checkpoints_(RunFolder::checkpoints_of(config.run.dir)),
      resume_(told_to_ranks(*communicator_, log,
                            [&] { return resume_point(config, options, *communicator_, log); })),
      model_(told_to_ranks(*communicator_, log, [&] { return open_model(config.model.path, log); })),
      source_(told_to_ranks(*communicator_, log,
                            [&] {
                              return BatchSource(config.data.rollouts, config.data.trajectories_per_step,
                                                 rollout_options(config, model_.config),
                                                 options.dry_run ? 0 : config.data.wait_s, *communicator_,
                                                 log);
                            })),
      batching_(micro_batch_options(config, model_.config, *communicator_)),
      feed_(config, batching_, source_),
      stop_after_(parse_stop_after(options.stop_after, config.run.steps)),
      base_(told_to_ranks(*communicator_, log, [&] { return base_model(model_); })) {}

void Trainer::prepare() {
  told_to_ranks(*communicator_, log_, [this] { prepare_steps(); });
}

void Trainer::prepare_steps() {
  // What can be refused is refused before the weights are read.
  agree_on_isa(*communicator_, device_, device_options_, &notes_);
  check_same_start();
  if (resume_.has_value()) check_resume_point();
  if (is_finished()) return;
  check_memory(config_, model_.config, config_.data.row_length, /*trains=*/true, rank_memory_bytes());
  source_.set_on_wait([this] { before_wait(); });
  // Before the first step a signal ends the process: nothing has to be left off here.
  static_cast<void>(source_.wait([] { return false; }));
  if (const std::exception_ptr failure = read_batch(); failure != nullptr) std::rethrow_exception(failure);
  if (resume_.has_value()) {
    std::vector<std::vector<double>> old_logprobs;
    with_checkpoint_remedy(*resume_, [&] { old_logprobs = read_old_logprobs(resume_->path); });
    feed_.go_on(resume_->state.position.iteration, std::move(old_logprobs));
    micro_batches_ = resume_->state.micro_batches;
    saved_ = resume_->name;
    if (micro_batches_ > 0 && feed_.micro_batches() != resume_->state.step_micro_batches) {
      data_error(feed_.ahead().file,
                 fmt::format("gives {} micro-batches and gave {} when the run left off in the middle of them",
                             feed_.micro_batches(), resume_->state.step_micro_batches),
                 "put the file back that the run began with");
    }
  }
  load_weights();
}

void Trainer::check_same_start() {
  const auto same = [this](std::string_view text) {
    Digest digest;
    digest.add(text);
    return first_other_rank(values_of_ranks(*communicator_, digest.value()));
  };
  std::string settings;
  for (const Setting& setting : options_.settings) {
    // What belongs to a machine may differ.
    if (setting.key == "run.threads" || setting.key == "run.memory_budget") continue;
    settings += fmt::format("{}={}\n", setting.key, setting.value);
  }
  if (const int rank = same(settings); rank > 0) {
    throw AgreedError(ErrorKind::kConfig, "run file",
                      fmt::format("rank {} has other settings than rank 0", rank),
                      "give all ranks the same run file and the same --set");
  }
  if (const int rank = same(base_.config + base_.tensors + base_.weights); rank > 0) {
    throw AgreedError(
        ErrorKind::kModel, config_.model.path,
        fmt::format("rank {} finds another model there than rank 0", rank),
        "put the model on a file system that all ranks share, or the same files on every machine");
  }
}

void Trainer::check_resume_point() {
  check_same_base(*resume_, base_);
  source_.set_used(resume_->state.files);
  check_same_files(*resume_, source_.files());
  const StepPosition& position = resume_->state.position;
  source_.seek(position.batch,
               position.batch.batch > 0 || position.iteration > 0 || resume_->state.micro_batches > 0,
               static_cast<int64_t>(resume_->state.file_bytes));
  const StopPoint here{.step = resume_->name.step, .micro_batches = resume_->name.micro_batches};
  if (stop_after_.has_value() && *stop_after_ < here) {
    config_error(
        "--stop-after",
        fmt::format("'{}' is behind the run, which goes on from {}", options_.stop_after, resume_->path),
        "stop later, or name an earlier checkpoint with run.resume");
  }
}

bool Trainer::is_finished() const {
  return resume_.has_value() && resume_->name.step >= config_.run.steps;
}

void Trainer::load_weights() {
  EngineOptions engine = engine_options(config_, device_options_, &notes_);
  if (config_.grpo.reference_initial && config_.grpo.beta != 0) {
    EngineOptions frozen = engine;
    frozen.frozen = true;
    frozen.trainable.clear();
    reference_device_ = std::make_unique<Device>(device_options_);
    reference_ = std::make_unique<Engine>(*reference_device_, *communicator_, model_.config, model_.layout,
                                          frozen, log_);
    reference_->load(*model_.folder);
    // What it holds is not there for training.
    engine.memory_budget -= std::min(engine.memory_budget, reference_device_->memory->live().total());
  }
  engine_ = std::make_unique<Engine>(device_, *communicator_, model_.config, model_.layout, engine, log_);
  if (resume_.has_value()) {
    const std::unique_ptr<HfFolder> checkpoint = open_checkpoint_model(*resume_, model_);
    with_checkpoint_remedy(*resume_, [&] {
      engine_->load(*checkpoint);
      engine_->restore(*checkpoint, resume_->path, resume_->state.counters, resume_->name.micro_batches > 0);
    });
  } else {
    engine_->load(*model_.folder);
  }
}

bool Trainer::at_stop_point(int64_t micro_batches) const {
  return stop_after_.has_value() &&
         *stop_after_ == StopPoint{.step = engine_->step(), .micro_batches = micro_batches};
}

bool Trainer::stop_wanted() {
  if (stop_reason_.empty() && at_stop_point(micro_batches_))
    stop_reason_ = "--stop-after " + options_.stop_after;
  static_cast<void>(look_over_ranks(ReadAhead::kThere));
  return !stop_reason_.empty();
}

bool Trainer::submit_step() {
  if (!feed_.begin_step(*engine_, reference_.get(), [this] { return stop_wanted(); })) return false;
  for (; micro_batches_ < feed_.micro_batches(); ++micro_batches_) {
    if (stop_wanted()) return false;
    training_->set_what(fmt::format("training, step {}, micro-batch {}/{}", engine_->step() + 1,
                                    micro_batches_ + 1, feed_.micro_batches()));
    engine_->fwd_bwd(feed_.micro_batch(*engine_, micro_batches_));
  }
  if (at_stop_point(micro_batches_) && stop_wanted()) return false;
  if (stop_after_.has_value() && stop_after_->step == engine_->step() && stop_after_->micro_batches > 0) {
    stop_reason_ = fmt::format("--stop-after {} (step {} has only {} micro-batches)", options_.stop_after,
                               engine_->step() + 1, micro_batches_);
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
  if (!ledger_written_ && !options_.ledger_out.empty()) write_ledger();
  if (!config_.optimizer.skip_nonfinite)
    report_pending();  // which may end the run: nothing may come after it
  return true;
}

void Trainer::report_pending() {
  if (!pending_.has_value()) return;
  SubmittedStep submitted = std::move(*pending_);
  pending_.reset();
  const StepResult result = engine_->result_of(submitted.result);
  if (leads()) reporter_->report(result, std::move(submitted.info), notes_);
  training_->advance();
  if (result.update.stops_run) end_at_nonfinite(result);
}

void Trainer::end_at_nonfinite(const StepResult& result) {
  std::string saved = "the weights before it are saved, and the same command goes on after it";
  try {
    start_save();
    finish_save();
  } catch (const Error& e) {
    saved = fmt::format("nothing is saved ({})", e.what());
  }
  throw AgreedError(
      ErrorKind::kGate, fmt::format("step {}", result.step),
      fmt::format("{}; optimizer.skip_nonfinite is false; {}", result.update.reason, saved),
      "look at that step's data; a lower learning rate often helps; skip_nonfinite: true skips such steps");
}

Trainer::ReadAhead Trainer::look_over_ranks(ReadAhead found) {
  if (stop_reason_.empty() && options_.stop_requested) stop_reason_ = options_.stop_requested();
  const int ranks = communicator_->mesh().size();
  // A signal may have come to one rank alone; the first that has a reason names it. A save has ended when all have.
  const int weight = stop_reason_.empty() ? 0 : ranks - communicator_->rank();
  std::array<double, 3> all{static_cast<double>(found), static_cast<double>(weight),
                            engine_->save_running() ? 1.0 : 0.0};
  communicator_->all_reduce_max(run_exchange(), all);
  if (all[1] > 0) {
    const int first = ranks - static_cast<int>(all[1]);
    stop_reason_ = text_of_rank(*communicator_, first, stop_reason_);
    if (first > 0) stop_reason_ += fmt::format(" to rank {}", first);
  }
  if (all[2] == 0) finish_save();
  return static_cast<ReadAhead>(static_cast<int>(all[0]));
}

// Of the first optimizer step; what was exchanged before it does not count.
void Trainer::write_ledger() {
  engine_->wait_for_device();
  if (leads()) lathe::write_ledger(options_.ledger_out, *communicator_);
  ledger_written_ = true;
}

void Trainer::open_folder() {
  // Checkpoints are renamed and removed here: not before every rank has read what it needs of them.
  communicator_->barrier(Channel::kHost);
  if (!leads()) return check_folder_is_shared();
  if (resume_.has_value()) {
    folder_->go_on_after(resume_->name, options_.resolved_config);
    const std::string in_step = micro_batches_ == 0
                                    ? ""
                                    : fmt::format(", and {} of {} micro-batches of step {}", micro_batches_,
                                                  resume_->state.step_micro_batches, resume_->name.step + 1);
    log_.info("going on from {}: {} of {} steps are done{}", resume_->path, resume_->name.step,
              config_.run.steps, in_step);
  } else {
    folder_->begin(options_.resolved_config);
  }
  check_free_space(config_.run.dir, checkpoint_bytes(false));
  check_folder_is_shared();
}

void Trainer::check_folder_is_shared() {
  if (communicator_->mesh().size() == 1) return;
  const std::string token =
      leaders_texts(*communicator_, {leads() ? folder_->token() : std::string()}).front();
  // Other hosts may see what is new a little later.
  constexpr int kLooks = 50;
  constexpr std::chrono::milliseconds kPause{100};
  bool there = RunFolder::is_writable_with_token(config_.run.dir, token);
  for (int i = 1; i < kLooks && !there; ++i) {
    std::this_thread::sleep_for(kPause);
    there = RunFolder::is_writable_with_token(config_.run.dir, token);
  }
  const int rank = first_other_rank(values_of_ranks(*communicator_, there ? 0 : 1));
  if (rank < 0) return;
  throw AgreedError(ErrorKind::kConfig, "run.dir",
                    fmt::format("'{}' on rank {} is not the folder of rank 0, or cannot be written there",
                                config_.run.dir, rank),
                    "put run.dir on a file system that all ranks share and may write to");
}

void Trainer::run_steps() {
  while (engine_->step() < config_.run.steps) {
    if (stop_wanted() || !submit_step()) return;
    if (engine_->step() == config_.run.steps) return;
    read_ahead();
    save_if_due();
  }
}

int Trainer::run() {
  return told_to_ranks(*communicator_, log_, [this] { return run_to_end(); });
}

int Trainer::run_to_end() {
  if (is_finished()) {
    print_(fmt::format("nothing to do: {} has all {} steps; raise run.steps to go on", resume_->path,
                       config_.run.steps));
    return 0;
  }
  open_folder();
  if (leads()) {
    reporter_ = std::make_unique<StepReporter>(config_, device_, *folder_, log_);
    if (resume_.has_value()) reporter_->restore(resume_->state.rolling);
  }
  for (const auto& [key, choice] : notes_) log_.info("{}: {}", key, choice);
  engine_->plan_remat(config_.data.rows_per_micro_batch, config_.data.row_length);
  notes_.emplace_back("remat.policy", engine_->remat_choice());
  const int64_t planned = rehearse_largest(*engine_, feed_.ahead().micro_batches).use.total();
  if (leads()) {
    reporter_->set_planned_memory(planned);
    reporter_->set_startup_seconds(steady_seconds() - options_.process_start_s);
  }
  if (Ledger* ledger = communicator_->ledger(); ledger != nullptr) ledger->reset();
  if (options_.started) options_.started();
  training_.emplace(log_.activity("training", config_.run.steps - engine_->step(), "steps"));
  run_steps();
  report_pending();
  if (engine_->step() < config_.run.steps) return stop();
  start_save();
  finish_save();
  return 0;
}

int Trainer::stop() {
  const std::string in_step = micro_batches_ == 0
                                  ? ""
                                  : fmt::format(" and {} of {} micro-batches of step {}", micro_batches_,
                                                feed_.micro_batches(), engine_->step() + 1);
  const bool anything = engine_->step() > 0 || micro_batches_ > 0;
  if (anything) {
    start_save();
    finish_save();
  }
  log_.info("stopped by {} after step {}{}: {}", stop_reason_, engine_->step(), in_step,
            anything ? "the same command goes on from the checkpoint" : "nothing was trained yet");
  return static_cast<int>(ErrorKind::kRetryable);
}

}  // namespace lathe
