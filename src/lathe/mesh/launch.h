// What the launcher says about this process, from its environment; nothing is started for it. One rank without mpirun.
#pragma once

namespace lathe {

struct Launch {
  int rank = 0;
  int ranks = 1;
  int host_ranks = 1;  // of these, on this host
  // Cores this process may use, divided among the ranks of the host; at least 1.
  [[nodiscard]] int cores() const;
};

// A config error for ranks of a launcher that is not Open MPI's.
[[nodiscard]] Launch launch_from_environment();

}  // namespace lathe
