// --ledger-out: what was exchanged, as JSON: ranks, mesh, and under `collectives` the totals by phase, tensor, kind and axes
// (lathe/mesh/ledger.h says what the bytes are).
#pragma once

#include <string>

#include "lathe/mesh/communicator.h"

namespace lathe {

// The ledger of this rank since it was reset; one rank has exchanged nothing. Retryable errors if it cannot be written.
void write_ledger(const std::string& path, Communicator& communicator);

}  // namespace lathe
