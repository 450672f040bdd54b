// Ranks that mpirun started, over Open MPI. MPI begins when a communicator of several ranks is made, and ends with it; all
// its calls are made by the communication thread.
#pragma once

#include <memory>
#include <string>

#include "lathe/core/memory.h"
#include "lathe/mesh/communicator.h"
#include "lathe/mesh/launch.h"

namespace lathe {

// For the mesh of all ranks of the launch; one rank: the solo communicator, without MPI. Once per process. `memory` (scratch
// of reductions) outlives it.
[[nodiscard]] std::unique_ptr<Communicator> make_communicator(const MeshShape& mesh, DeviceMemory& memory);

// Ends this process with exit code `code`, and with it all other ranks. Call it when the communicator is gone.
[[noreturn]] void abort_ranks(int code);

// "Open MPI v4.1.4"
[[nodiscard]] std::string mpi_version();

}  // namespace lathe
