// Planted faults: a communicator that leaves one exchange out, for tests that must notice it.
#pragma once

#include <memory>
#include <string>

#include "lathe/mesh/communicator.h"

namespace lathe::test {

// An exchange that does not happen: receivers find zeros, gathers hold the rank's own part alone, sums its own share.
struct DroppedExchange {
  std::string tensor;
  Phase phase = Phase::kForward;
  int only_half = -1;  // of a point-to-point exchange: this half of its messages
};

// `dropped` may be null: nothing is left out. It outlives the communicator.
[[nodiscard]] std::unique_ptr<Communicator> drop_exchange(std::unique_ptr<Communicator> inner,
                                                          const DroppedExchange* dropped);

}  // namespace lathe::test
