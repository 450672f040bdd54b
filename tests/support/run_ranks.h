// Runs `run` on one thread per rank of the mesh, over in-process exchanges. When a rank throws, the exchanges of the
// others throw at once; the error of the one that threw first is thrown here.
#pragma once

#include <functional>

#include "lathe/mesh/communicator.h"
#include "lathe/mesh/thread_world.h"

namespace lathe::test {

// `run` makes its communicator: world.communicator(rank, memory of its device).
void run_ranks_of(const MeshShape& mesh, const std::function<void(ThreadWorld& world, int rank)>& run);
// With a communicator whose scratch is poisoned memory of its own.
void run_ranks(const MeshShape& mesh, const std::function<void(Communicator& communicator)>& run);

}  // namespace lathe::test
