// `lathe train`: the step loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/log.h"
#include "lathe/loop/run_config.h"
#include "lathe/mesh/communicator.h"

namespace lathe {

// A key of the configuration, its value and its default as text.
struct Setting {
  std::string key;
  std::string value;
  std::string default_value;
};

struct TrainOptions {
  CommunicatorFactory communicator;  // absent: of the ranks that were started. Every rank calls train
  bool dry_run = false;
  std::string gradients_out;      // file for the first step's gradients
  std::string ledger_out;         // file for what the first step exchanged (ledger_file.h)
  std::string stop_after;         // STEP or STEP:MICRO_BATCH; "" = not
  std::string resolved_config;    // text of config.resolved.yaml, written into the run folder
  std::vector<Setting> settings;  // the same, to compare with the run that is gone on with
  std::string version;            // of the program, for people who look into a checkpoint
  double process_start_s = 0;     // of a steady clock, for time/startup_s
  // Called once: from here on the run saves before it stops.
  std::function<void()> started;
  // Asked between micro-batches: why the run must stop now, or "". Called on the thread of the loop, also while it waits for a file.
  std::function<std::string()> stop_requested;
};

// Returns the exit code: 0, or 75 when the run was stopped before its last step, after a checkpoint. Errors are thrown;
// those of data that come after finished steps leave a checkpoint of them. The result that belongs on stdout is passed to
// `print` a line at a time.
[[nodiscard]] int train(const RunConfig& config, const TrainOptions& options, Log& log,
                        const std::function<void(const std::string& line)>& print);

}  // namespace lathe
