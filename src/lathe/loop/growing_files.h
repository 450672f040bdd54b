// The rollout files of a folder (or glob) that a sampler fills while the run trains, one file a step: data.wait_s.
//
// Files are used in the order of their names. One that appears before the last used one comes too late: it is left out,
// with a warning. Used files may be removed. A file is taken when it is complete: not empty, unchanged for a moment, and
// with a line break at its end (gzip files: without that test); one without is taken after data.wait_s without a change.
// Writers do best to write under another name (a dot in front, or .tmp at the end) and to rename.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lathe/core/log.h"

namespace lathe {

class GrowingFiles {
 public:
  // Config error: `pattern` is one file. poll_s: how often to look, and the moment of a complete file.
  GrowingFiles(std::string pattern, double wait_s, Log& log, double poll_s = 0.5);

  // In order; those after the used ones may change with every wait.
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  // A run goes on: these were used, and may be gone.
  void set_used(const std::vector<std::string>& used);

  // Waits until the file after the first `used` ones is there and complete. False: stop() said so. Retryable error: for
  // wait_s seconds no new file has come and none has grown.
  // on_wait (may be empty) is called first if there is anything to wait for; its time does not count.
  [[nodiscard]] bool wait(size_t used, const std::function<bool()>& stop,
                          const std::function<void()>& on_wait = {});
  // Of the file that wait() found: what it had when it was complete.
  [[nodiscard]] int64_t bytes() const { return seen_.bytes; }
  // Seconds spent in wait() since the last call.
  [[nodiscard]] double take_waited();

 private:
  struct Seen {
    std::string path;
    int64_t bytes = -1;
    int64_t changed_ns = 0;
    double since = 0;
  };
  void look(size_t used);
  [[nodiscard]] bool is_complete(const std::string& path, double now);
  [[nodiscard]] std::string next_name(size_t used) const;
  [[noreturn]] void give_up(size_t used) const;

  std::string pattern_;
  double wait_s_;
  double poll_s_;
  Log& log_;
  std::vector<std::string> files_;
  std::set<std::string> late_;  // warned about
  Seen seen_;                   // the next file, as it was
  double last_change_ = 0;
  double waited_ = 0;
};

// "r/step_0009.jsonl" -> "r/step_0010.jsonl"; "" if there is no number in the name.
[[nodiscard]] std::string name_after(const std::string& path);

}  // namespace lathe
