// What is said of a finished step: one line of metrics.jsonl, one of the log.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/log.h"
#include "lathe/engine/engine.h"
#include "lathe/loop/outliers.h"
#include "lathe/loop/run_folder.h"
#include "lathe/loop/setup.h"
#include "lathe/loop/step_feed.h"
#include "lathe/loop/step_hints.h"
#include "lathe/loop/train_state.h"

namespace lathe {

class StepReporter {
 public:
  StepReporter(const RunConfig& config, const Device& device, RunFolder& folder, Log& log)
      : config_(config), device_(device), folder_(folder), log_(log), last_report_(steady_seconds()) {}

  // Statistics over many steps: they go into every checkpoint and come back when the run goes on.
  [[nodiscard]] RollingStats rolling() const;
  void restore(const RollingStats& rolling);

  void set_startup_seconds(double seconds) { startup_s_ = seconds; }
  // What the rehearsal of a step said; compared with what the first step really took.
  void set_planned_memory(int64_t bytes) { planned_memory_ = bytes; }
  // `notes` go into the first line of metrics.jsonl, and why the head took two passes if it had to in that step.
  void report(const StepResult& result, StepInfo info, const Notes& notes);

 private:
  void write_log(const StepResult& result, const StepInfo& info, const std::map<std::string, double>& loss,
                 double step_s);
  [[nodiscard]] std::string time_left(int64_t step, double step_s);
  [[nodiscard]] std::vector<Metric> step_metrics(const StepResult& result, const StepInfo& info,
                                                 double step_s) const;

  const RunConfig& config_;
  const Device& device_;
  RunFolder& folder_;
  Log& log_;
  OutlierWatch outliers_;
  StepHints hints_;
  std::deque<double> step_seconds_;  // of the last steps of this process, for the time left
  double startup_s_ = 0;
  int64_t planned_memory_ = 0;
  double last_report_;
  bool restart_said_ = false;
};

}  // namespace lathe
