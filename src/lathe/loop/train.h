// `lathe train`: the step loop.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lathe/core/log.h"
#include "lathe/loop/run_config.h"

namespace lathe {

struct TrainOptions {
  bool dry_run = false;
  std::string gradients_out;    // file for the first step's gradients
  std::string ledger_out;       // not built in this version: a config error when given
  std::string stop_after;       // STEP or STEP:MICRO_BATCH; "" = not
  std::string resolved_config;  // text of config.resolved.yaml, written into the run folder
  double process_start_s = 0;   // of a steady clock, for time/startup_s
};

// Returns the exit code 0. Errors are thrown; those that come after finished steps leave a checkpoint of them. The result that belongs on stdout
// is passed to `print` a line at a time.
[[nodiscard]] int train(const RunConfig& config, const TrainOptions& options, Log& log,
                        const std::function<void(const std::string& line)>& print);

}  // namespace lathe
