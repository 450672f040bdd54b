// The run folder: config.resolved.yaml, metrics.jsonl, log.txt, checkpoints/step_000012/.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/log.h"

namespace lathe {

// One number of metrics.jsonl; not finite: written as null, with a warning.
using Metric = std::pair<std::string, double>;

class RunFolder {
 public:
  // Creates the folder. Config errors: not writable, or it holds a run already.
  RunFolder(const std::string& path, const std::string& resolved_config, Log& log);

  [[nodiscard]] const std::string& path() const { return path_; }
  // First line of metrics.jsonl carries `notes` too: the choices behind `auto` values.
  void write_metrics(int64_t step, const std::vector<Metric>& metrics,
                     const std::vector<std::pair<std::string, std::string>>& notes);

  // Writes checkpoints/step_%06d through `fill(folder)`: beside it first, then renamed, COMPLETE last, then `latest`.
  // Returns the folder's path. `keep` newest complete ones stay (0 = all).
  std::string save_checkpoint(int64_t step, int64_t keep,
                              const std::function<void(const std::string& folder)>& fill);

 private:
  std::string path_;
  Log& log_;
  std::ofstream metrics_;
};

}  // namespace lathe
