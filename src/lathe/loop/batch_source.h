// The trajectories of each optimizer batch, from rollout files: one file a batch, or chunks of whole groups of
// data.trajectories_per_step. After the last batch they repeat from the first, or with data.wait_s the next file is waited
// for.
//
// On many ranks the leading one decides which file comes next and how many bytes of it count, and tells the others: they
// never look for files themselves. All ranks make the same calls.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lathe/core/log.h"
#include "lathe/data/rollouts.h"
#include "lathe/loop/growing_files.h"
#include "lathe/mesh/communicator.h"

namespace lathe {

// Where a batch is in the rollouts: enough to read it again.
struct BatchPosition {
  int64_t epoch = 0;  // 0 the first time through
  int64_t file =
      0;  // index into the list of files; beyond the last one: the first of the next epoch, or a new file
  int64_t batch = 0;  // within the file
  [[nodiscard]] bool operator==(const BatchPosition&) const = default;
};

struct StepBatch {
  std::string file;
  std::vector<Trajectory> trajectories;
  int64_t bad_lines = 0;  // of the file, counted with its first batch
  BatchPosition position;
  int64_t batches = 0;  // of its file
  double waited_s = 0;  // for its file
};

class BatchSource {
 public:
  using StopCheck = std::function<bool()>;
  // wait_s: data.wait_s; 0 = the files that are there now, repeated. `communicator` outlives the source. Data errors: no
  // file, or a file without trajectories.
  BatchSource(const std::string& pattern, int64_t trajectories_per_step, const RolloutOptions& options,
              double wait_s, Communicator& communicator, Log& log);

  // Before next(), on the leading rank (it does nothing on others): waits for the file that comes next, if one is needed.
  // False: stop() said so. Retryable error: none came (growing_files.h).
  [[nodiscard]] bool wait(const StopCheck& stop);
  [[nodiscard]] StepBatch next();
  // What to do before a file is waited for.
  void set_on_wait(std::function<void()> on_wait) { on_wait_ = std::move(on_wait); }
  // A run goes on: these files were used. With data.wait_s they need not be there any more.
  void set_used(const std::vector<std::string>& files);
  // The position of what next() gives.
  [[nodiscard]] BatchPosition position() const;
  // next() gives the batch at `position`. begun: of its file something was used, `bytes` of which counted (0: not known).
  // Data error: there is no such batch any more.
  void seek(const BatchPosition& position, bool begun, int64_t bytes);
  // False when next() would begin again with the first file.
  [[nodiscard]] bool has_next_of_epoch() const { return !pending_.empty() || next_file_ < files().size(); }
  // With data.wait_s, on ranks that do not lead: those that were used.
  [[nodiscard]] const std::vector<std::string>& files() const {
    return growing_ ? growing_->files() : files_;
  }
  // How many of the bytes of the file that was read last count.
  [[nodiscard]] int64_t bytes() const { return options_.bytes; }

 private:
  struct Choice {
    std::string path;
    int64_t bytes = 0;
  };
  [[nodiscard]] bool leads() const { return communicator_.rank() == 0; }
  void read_file();
  [[nodiscard]] Choice next_file() const;
  [[nodiscard]] Choice told_by_leader() const;

  Communicator& communicator_;
  std::vector<std::string> files_;       // without data.wait_s; with it, on ranks that do not lead
  std::optional<GrowingFiles> growing_;  // with it, on the leading rank
  std::optional<Choice> begun_;          // the file that is to be read before any other
  std::function<void()> on_wait_;
  int64_t trajectories_per_step_;
  RolloutOptions options_;
  bool grows_;
  Log& log_;
  size_t next_file_ = 0;
  int64_t epoch_ = 0;
  std::set<std::string> warned_;    // each warning is given once a run
  std::vector<StepBatch> pending_;  // batches of the current file, last first
};

// Cuts a file's trajectories into batches of at most `count` (at least one group), groups whole and in order of their
// first line. count 0: one batch.
[[nodiscard]] std::vector<std::vector<Trajectory>> split_by_groups(std::vector<Trajectory> trajectories,
                                                                   int64_t count);

}  // namespace lathe
