// The run folder: config.resolved.yaml, metrics.jsonl, log.txt, checkpoints/step_000012/.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/log.h"

namespace lathe {

// One number of metrics.jsonl; not finite: written as null, with a warning.
using Metric = std::pair<std::string, double>;

class RunFolder {
 public:
  // Config errors of run.dir, found without writing anything: it holds a run with checkpoints, is a file, is not
  // writable, or is not empty though `resume` is never.
  static void check_usable(const std::string& path, const std::string& resume);
  // The same checks, then creates the folder and locks it; one that another process holds is a config error.
  RunFolder(const std::string& path, const std::string& resume, const std::string& resolved_config, Log& log);

  // First line of metrics.jsonl carries `notes` too: the choices behind `auto` values.
  void write_metrics(int64_t step, const std::vector<Metric>& metrics,
                     const std::vector<std::pair<std::string, std::string>>& notes);

  // Writes checkpoints/step_%06d through `fill(folder)`: beside it first, then renamed, COMPLETE last, then `latest`.
  // Returns the folder's path. `keep` newest complete ones stay (0 = all).
  std::string save_checkpoint(int64_t step, int64_t keep,
                              const std::function<void(const std::string& folder)>& fill);

 private:
  class Lock {
   public:
    explicit Lock(const std::string& folder);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int descriptor_;
  };

  std::string path_;
  Log& log_;
  std::unique_ptr<Lock> lock_;
  std::ofstream metrics_;
};

}  // namespace lathe
