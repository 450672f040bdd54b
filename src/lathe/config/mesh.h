// The mesh of a run file against the ranks there are.
#pragma once

#include "lathe/config/load.h"
#include "lathe/config/problems.h"

namespace lathe {

// Gives the axis that is -1 its size. A problem names all four sizes and the number of ranks: two axes of -1, an axis of 0,
// sizes that do not multiply to the ranks.
void resolve_mesh(LoadedConfig* loaded, int ranks, ProblemList* problems);

}  // namespace lathe
