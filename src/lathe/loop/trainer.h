// A run: its parts, and the loop over its steps. Used by train() alone.
#pragma once

#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "lathe/loop/resume.h"
#include "lathe/loop/run_folder.h"
#include "lathe/loop/setup.h"
#include "lathe/loop/step_feed.h"
#include "lathe/loop/step_report.h"
#include "lathe/loop/stop.h"
#include "lathe/loop/train.h"

namespace lathe {

class Trainer {
 public:
  // Makes the ranks find each other, and the checkpoint to go on from.
  Trainer(const RunConfig& config, const TrainOptions& options, Log& log,
          const std::function<void(const std::string&)>& print);
  // First: reads and checks everything up to the weights.
  void prepare();
  void dry_run();
  [[nodiscard]] int run();  // the exit code

 private:
  // A step whose update is queued.
  struct SubmittedStep {
    StepInfo info;
    std::future<StepResult> result;
  };

  // How the look for the next batch went; larger ones win over ranks.
  enum class ReadAhead : uint8_t { kThere, kLeftOff, kFailed, kWaits };
  // The rank that writes the run folder, the log and the report.
  [[nodiscard]] bool leads() const { return communicator_->rank() == 0; }
  // Of all ranks, which all come here: the largest of their findings; a reason to stop that one of them has, which is noted;
  // and the end of a save beside the steps. Throws what that save threw.
  [[nodiscard]] ReadAhead look_over_ranks(ReadAhead found);
  void write_ledger();
  void prepare_steps();
  [[nodiscard]] int run_to_end();
  // All ranks begin with the same settings and the same model.
  void check_same_start();
  void check_resume_point();
  void load_weights();
  void open_folder();
  // All ranks write into the files of a checkpoint.
  void check_folder_is_shared();
  [[nodiscard]] bool is_finished() const;  // there is nothing to do
  void run_steps();                        // until the last one, or stop_reason_ is set
  // False: stopped in the middle of the step, its update is not queued.
  [[nodiscard]] bool submit_step();
  // Reads the next batch while the device works. A bad file must not cost the steps before it: they are saved first.
  void read_ahead();
  // The leading rank's part of it that comes first: a file is there.
  [[nodiscard]] ReadAhead wait_for_file(std::exception_ptr* failure);
  // All ranks read the batch, and have the same. What is wrong with it, on any of them, or null.
  [[nodiscard]] std::exception_ptr read_batch();
  [[noreturn]] void end_after_save(const std::exception_ptr& failure);
  // What the loop does while it waits for the next batch. If it throws, that batch is not to blame.
  void while_waiting(const std::function<void()>& work);
  void before_wait();  // for a rollout file: whoever writes it may wait for this run's weights
  void report_pending();
  // Between micro-batches and between steps: whether to stop here; all ranks together. Throws what a save beside the
  // steps threw.
  [[nodiscard]] bool stop_wanted();
  [[noreturn]] void end_at_nonfinite(const StepResult& result);
  [[nodiscard]] bool at_stop_point(int64_t micro_batches) const;
  [[nodiscard]] int stop();

  // Saving (trainer_save.cc); reading is in trainer_read.cc.
  [[nodiscard]] TrainState current_state();
  [[nodiscard]] uint64_t checkpoint_bytes(bool in_step) const;
  void save_if_due();
  void write_checkpoint(const CheckpointName& name, const TrainState& state,
                        std::vector<std::vector<double>> old_logprobs);
  void write_share(const CheckpointName& name, const TrainState& state,
                   std::vector<std::vector<double>> old_logprobs);
  void start_save();   // of the steps and micro-batches that are queued; beside the steps that follow
  void finish_save();  // waits for it; all ranks do. Throws what it threw on one of them

  const RunConfig& config_;
  const TrainOptions& options_;
  Log& log_;
  std::function<void(const std::string&)> print_;
  Notes notes_;
  DeviceOptions device_options_;
  Device device_;
  std::unique_ptr<Communicator> communicator_;
  // Null in a dry run and on ranks that do not lead; before the engine, whose saver writes into it.
  std::unique_ptr<RunFolder> folder_;
  Checkpoints checkpoints_;
  std::optional<ResumePoint> resume_;
  LoadedModel model_;
  BatchSource source_;
  MicroBatchOptions batching_;
  StepFeed feed_;  // holds memory of the device
  std::unique_ptr<Engine> engine_;
  // The starting weights, on a device of their own: grpo.reference initial.
  std::unique_ptr<Device> reference_device_;
  std::unique_ptr<Engine> reference_;
  std::unique_ptr<StepReporter> reporter_;  // of the leading rank
  std::optional<StopPoint> stop_after_;
  std::string stop_reason_;               // "" = none yet
  std::optional<SubmittedStep> pending_;  // not reported yet
  int64_t micro_batches_ = 0;             // of the step in progress, queued
  std::optional<CheckpointName> saved_;   // the newest checkpoint, begun or there
  bool failed_while_waiting_ = false;
  bool saving_ = false;  // begun, and nobody has heard of its end
  BaseModel base_;
  bool gradients_written_ = false;
  bool ledger_written_ = false;
  std::optional<Activity> training_;
};

}  // namespace lathe
