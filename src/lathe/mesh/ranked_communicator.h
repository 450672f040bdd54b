// The communicator of one rank among several, over a transport. Scratch of reductions comes from `memory`.
#pragma once

#include <memory>

#include "lathe/core/memory.h"
#include "lathe/mesh/communicator.h"
#include "lathe/mesh/transport.h"

namespace lathe {

[[nodiscard]] std::unique_ptr<Communicator> make_ranked_communicator(const MeshShape& mesh, int rank,
                                                                     DeviceMemory& memory,
                                                                     OpenTransport open);

}  // namespace lathe
