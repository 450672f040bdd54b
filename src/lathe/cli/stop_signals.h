// SIGTERM, SIGINT and SIGUSR1 (which mpirun passes on to its ranks) while `lathe train` runs. Before the steps begin there is
// nothing to save: the process exits at once with 75. From started() on the first signal is only noted, and the run saves
// and stops; a second one kills.
#pragma once

#include <string>

namespace lathe {

// One at a time.
class StopSignals {
 public:
  // tells: a signal before the first step is told on stderr, for all ranks by one.
  explicit StopSignals(bool tells);
  ~StopSignals();  // as it was before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static void started();
  [[nodiscard]] static std::string received();  // "SIGTERM", "SIGINT", "SIGUSR1" or ""
};

}  // namespace lathe
