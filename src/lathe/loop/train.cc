#include "lathe/loop/train.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/loop/run_folder.h"
#include "lathe/loop/setup.h"
#include "lathe/loop/step_data.h"

namespace lathe {
namespace {

using Prepared = std::shared_ptr<PreparedMicroBatch>;

struct SubmittedStep {
  std::vector<Metric> data_metrics;
  int64_t trained_tokens = 0;
  double reward_mean = 0;
  double data_s = 0;
  std::future<StepResult> result;
};

class Trainer {
 public:
  Trainer(const RunConfig& config, const TrainOptions& options, Log& log,
          const std::function<void(const std::string&)>& print);
  void dry_run();
  int run();

 private:
  [[nodiscard]] StepData next_data();
  void fill_missing_logprobs(const std::vector<Prepared>& micro_batches);
  [[nodiscard]] SubmittedStep submit(StepData data);
  void report(SubmittedStep& submitted);
  void save();

  const RunConfig& config_;
  const TrainOptions& options_;
  Log& log_;
  std::function<void(const std::string&)> print_;
  Notes notes_;
  DeviceOptions device_options_;
  LoadedModel model_;
  BatchSource source_;
  MicroBatchOptions batching_;
  Device device_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Engine> engine_;
  // The starting weights, on a device of their own: grpo.reference initial.
  std::unique_ptr<Device> reference_device_;
  std::unique_ptr<Engine> reference_;
  std::unique_ptr<RunFolder> folder_;
  std::vector<Prepared> repeated_;  // micro-batches of a batch with several iterations
  StepData first_;
  StepData repeated_data_;
  double data_s_ = 0;  // host seconds of the batch being built
  double startup_s_ = -1;
  double last_report_ = 0;
  bool gradients_written_ = false;
};

RolloutOptions rollout_options(const RunConfig& config, const ModelConfig& model) {
  RolloutOptions options;
  options.vocab_size = model.vocab_size;
  options.skip_bad_lines = config.data.on_bad_line == "skip";
  options.reward_weights = config.grpo.reward_weights;
  options.need_reward = true;
  return options;
}

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
      device_(device_options_),
      communicator_(make_solo_communicator()) {
  // What can be refused is refused before the weights are read.
  RunFolder::check_usable(config.run.dir, config.run.resume);
  first_ = next_data();
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

StepData Trainer::next_data() {
  const double start = steady_seconds();
  StepData data = build_step_data(config_, batching_, source_.next());
  data_s_ = steady_seconds() - start;
  return data;
}

// Log-probs that a setting needs and the file does not have: the reference's, and with several iterations over a batch
// those of the policy at its start.
void Trainer::fill_missing_logprobs(const std::vector<Prepared>& micro_batches) {
  for (const Prepared& prepared : micro_batches) {
    MicroBatch& host = prepared->host;
    if (reference_ != nullptr && host.ref_logprobs.empty()) {
      host.ref_logprobs = reference_->score(reference_->prepare(host)).logprobs;
    }
    if (config_.grpo.num_iterations > 1 && host.old_logprobs.empty()) {
      host.old_logprobs = engine_->score(prepared).logprobs;
    }
  }
}

SubmittedStep Trainer::submit(StepData data) {
  const bool repeats = config_.grpo.num_iterations > 1;
  if (startup_s_ < 0) startup_s_ = steady_seconds() - options_.process_start_s;
  if (repeats || reference_ != nullptr) {
    // Everything of the batch is needed before its first step, and kept for all of them.
    if (!data.micro_batches.empty()) {
      repeated_.clear();
      for (MicroBatch& m : data.micro_batches) repeated_.push_back(engine_->prepare(std::move(m)));
      data.micro_batches.clear();
      fill_missing_logprobs(repeated_);
      repeated_data_ = std::move(data);
    }
    for (const Prepared& prepared : repeated_) engine_->fwd_bwd(prepared);
    data = repeated_data_;
  } else {
    for (MicroBatch& m : data.micro_batches) engine_->fwd_bwd(engine_->prepare(std::move(m)));
  }
  if (!gradients_written_ && !options_.gradients_out.empty()) {
    engine_->write_gradients(options_.gradients_out);
    gradients_written_ = true;
  }
  return {std::move(data.metrics), data.trained_tokens, data.reward_mean, std::exchange(data_s_, 0),
          engine_->update()};
}

void Trainer::report(SubmittedStep& submitted) {
  const StepResult result = engine_->result_of(submitted.result);
  const double now = steady_seconds();
  const double step_s = now - last_report_;
  last_report_ = now;
  std::vector<Metric> metrics = std::move(submitted.data_metrics);
  const auto loss = loss_metrics(config_.grpo, result.stats, result.denominator);
  metrics.insert(metrics.end(), loss.begin(), loss.end());
  const double device_s = result.fwd_bwd_s + result.update_s;
  const double tokens_per_s = static_cast<double>(submitted.trained_tokens) / device_s;
  const auto peak = static_cast<double>(device_.memory->peak().total());
  const std::vector<Metric> rest{{"optim/grad_norm", result.update.grad_norm},
                                 {"optim/lr", result.update.learning_rate},
                                 {"optim/skipped", result.update.skipped ? 1 : 0},
                                 {"moe/max_load", result.moe_max_load},
                                 {"moe/dropped_frac", 0},
                                 {"time/startup_s", startup_s_},
                                 {"time/step_s", step_s},
                                 {"time/fwd_bwd_s", result.fwd_bwd_s},
                                 {"time/update_s", result.update_s},
                                 {"time/data_s", submitted.data_s},
                                 {"time/idle_s", result.idle_s},
                                 {"perf/tokens_per_s", tokens_per_s},
                                 {"perf/model_flops_per_s", result.flops / device_s},
                                 {"perf/peak_mem_bytes", peak}};
  metrics.insert(metrics.end(), rest.begin(), rest.end());
  folder_->write_metrics(result.step, metrics, result.step == 1 ? notes_ : Notes{});

  const auto value = [&loss](const char* name) {
    const auto found = loss.find(name);
    return found == loss.end() ? 0.0 : found->second;
  };
  log_.info(
      "step {}/{} | reward {:.3f} | loss {:.4g} | kl {:.2g} | clip {:.1f}% | grad {:.3g} | {:.0f} tok/s | "
      "{:.2f} GiB",
      result.step, config_.run.steps, submitted.reward_mean, value("policy/loss"), value("policy/approx_kl"),
      100 * value("policy/clip_frac"), result.update.grad_norm, tokens_per_s, peak / (1 << 30));
  if (result.update.skipped) log_.warning("step {} is skipped: {}", result.step, result.update.reason);
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

void Trainer::dry_run() {
  // Every batch that the run would use is read, checked and packed; the first one is shown.
  const int64_t needed = (config_.run.steps + config_.grpo.num_iterations - 1) / config_.grpo.num_iterations;
  const StepData data = std::move(first_);
  int64_t batches = 1;
  int64_t tokens = data.trained_tokens;
  for (; batches < needed && source_.has_next_of_epoch(); ++batches) tokens += next_data().trained_tokens;
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
  const MemoryUse live = device_.memory->live();
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    const auto k = static_cast<MemoryKind>(kind);
    if (live.of(k) > 0) {
      print_(fmt::format("memory: {:.1f} MiB {}", static_cast<double>(live.of(k)) / (1 << 20),
                         memory_kind_name(k)));
    }
  }
  for (const auto& [key, choice] : notes_) print_(fmt::format("{}: {}", key, choice));
  print_(fmt::format("remat.policy: {}", engine_->remat_choice()));
  print_("dry run: everything was read and checked, nothing was trained");
}

int Trainer::run() {
  StepData next = std::move(first_);
  folder_ = std::make_unique<RunFolder>(config_.run.dir, config_.run.resume, options_.resolved_config, log_);
  for (const auto& [key, choice] : notes_) log_.info("{}: {}", key, choice);
  last_report_ = steady_seconds();
  std::optional<SubmittedStep> pending;
  for (int64_t step = 1; step <= config_.run.steps; ++step) {
    SubmittedStep submitted = submit(std::exchange(next, {}));
    if (step == 1) notes_.emplace_back("remat.policy", engine_->remat_choice());
    // The device works on this step while the last one is reported and the next one is read and packed.
    if (pending.has_value()) report(*pending);
    pending = std::move(submitted);
    if (step < config_.run.steps && step % config_.grpo.num_iterations == 0) {
      try {
        next = next_data();
      } catch (const Error&) {  // a bad file in the middle of a run must not cost the steps before it
        report(*pending);
        save();
        throw;
      }
    }
  }
  report(*pending);
  save();
  return 0;
}

}  // namespace

int train(const RunConfig& config, const TrainOptions& options, Log& log,
          const std::function<void(const std::string& line)>& print) {
  if (!options.ledger_out.empty())
    config_error("--ledger-out", "is not built in this version", "leave it out");
  if (!options.stop_after.empty())
    config_error("--stop-after", "is not built in this version", "leave it out");
  check_packing_options(packing_options(config));
  check_grpo_config(config.grpo);
  Trainer trainer(config, options, log, print);
  if (options.dry_run) {
    trainer.dry_run();
    return 0;
  }
  return trainer.run();
}

}  // namespace lathe
