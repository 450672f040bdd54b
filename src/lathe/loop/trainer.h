// A run: its parts, and the loop over its steps. Used by train() alone.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "lathe/loop/run_folder.h"
#include "lathe/loop/setup.h"
#include "lathe/loop/step_feed.h"
#include "lathe/loop/step_report.h"
#include "lathe/loop/stop.h"
#include "lathe/loop/train.h"

namespace lathe {

class Trainer {
 public:
  // Reads and checks everything up to the weights.
  Trainer(const RunConfig& config, const TrainOptions& options, Log& log,
          const std::function<void(const std::string&)>& print);
  void dry_run();
  [[nodiscard]] int run();  // the exit code

 private:
  // A step whose update is queued.
  struct SubmittedStep {
    StepInfo info;
    std::future<StepResult> result;
  };

  // False: stopped in the middle of the step, its update is not queued.
  [[nodiscard]] bool submit_step();
  // Reads the next batch while the device works. A bad file must not cost the steps before it: they are saved first.
  void read_ahead();
  void report_pending();
  [[nodiscard]] bool stop_wanted();
  void save();
  [[noreturn]] void end_at_nonfinite(const StepResult& result);

  const RunConfig& config_;
  const TrainOptions& options_;
  Log& log_;
  std::function<void(const std::string&)> print_;
  Notes notes_;
  DeviceOptions device_options_;
  LoadedModel model_;
  BatchSource source_;
  MicroBatchOptions batching_;
  StepFeed feed_;
  Device device_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Engine> engine_;
  // The starting weights, on a device of their own: grpo.reference initial.
  std::unique_ptr<Device> reference_device_;
  std::unique_ptr<Engine> reference_;
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<StepReporter> reporter_;
  std::optional<StopPoint> stop_after_;
  std::optional<SubmittedStep> pending_;  // not reported yet
  int64_t micro_batches_ = 0;             // of the step in progress, queued
  bool gradients_written_ = false;
};

}  // namespace lathe
