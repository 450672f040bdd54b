// The communicator of an imagined rank, for the plan device: exchanges nothing and touches no memory, but counts, in its
// ledger what would be exchanged and in `memory` what reductions need meanwhile. Host values stay as they are.
#pragma once

#include <memory>

#include "lathe/core/memory.h"
#include "lathe/mesh/communicator.h"
#include "lathe/mesh/virtual_clock.h"

namespace lathe {

// clock: transfers take their time on it and waits stand still on it; null: nothing takes any time. Both outlive the
// communicator.
[[nodiscard]] std::unique_ptr<Communicator> make_plan_communicator(const MeshShape& mesh, int rank,
                                                                   DeviceMemory& memory,
                                                                   VirtualClock* clock = nullptr);

}  // namespace lathe
