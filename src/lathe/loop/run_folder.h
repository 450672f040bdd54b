// The run folder: config.resolved.yaml, metrics.jsonl, log.txt, checkpoints/.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/log.h"
#include "lathe/loop/checkpoints.h"

namespace lathe {

// One number of metrics.jsonl; not finite: written as null, with a warning.
using Metric = std::pair<std::string, double>;

class RunFolder {
 public:
  // Config errors of run.dir, found without writing anything: it is a file, is not writable, or is not empty though
  // `resume` is never.
  static void check_usable(const std::string& path, const std::string& resume);

  // The same checks; a folder that is there is locked. One that another process holds is a config error.
  RunFolder(const std::string& path, const std::string& resume, Log& log);

  // Creates what is missing and begins metrics.jsonl. Metrics of a run that ended before its first checkpoint are kept in
  // metrics.previous.jsonl.
  void begin(const std::string& resolved_config);
  // The same for a run that goes on after `name`: lines of metrics.jsonl after its step, and a cut last line, go; the
  // steps will write them again. Complete checkpoints after `name` are renamed, and metrics that go with them are kept.
  void go_on_after(const CheckpointName& name, const std::string& resolved_config);

  // The first line of metrics.jsonl carries `notes` too: the choices behind `auto` values.
  void write_metrics(int64_t step, const std::vector<Metric>& metrics,
                     const std::vector<std::pair<std::string, std::string>>& notes);
  void flush_metrics_to_disk() const;

  [[nodiscard]] static std::string checkpoints_of(const std::string& path);  // the folder
  // What begin and go_on_after wrote into the lock file, other for every process; whether `path` is a folder with that
  // text, where this process may write.
  [[nodiscard]] const std::string& token() const { return token_; }
  [[nodiscard]] static bool is_writable_with_token(const std::string& path, const std::string& token);
  [[nodiscard]] const Checkpoints& checkpoints() const { return checkpoints_; }

 private:
  class Lock {
   public:
    explicit Lock(const std::string& folder);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    void write(const std::string& text) const;

   private:
    int descriptor_;
  };

  void prepare(const std::string& resolved_config);
  void open_metrics();
  [[nodiscard]] std::string name_for_old_metrics() const;
  [[nodiscard]] std::string path_of(const char* name) const;

  std::string path_;
  std::string token_;
  Log& log_;
  Checkpoints checkpoints_;
  std::unique_ptr<Lock> lock_;
  std::ofstream metrics_;
  bool has_lines_ = false;
};

}  // namespace lathe
