// Memory by rehearsal: one optimizer step of the real program on the plan device, which allocates by name and holds
// nothing. What it counts is what the run will hold, kind by kind and tensor by tensor, at the step's worst moment.
// Engine::rehearse does it.
#pragma once

#include <vector>

#include "lathe/engine/engine.h"

namespace lathe {

struct RehearsedPeak {
  MemoryUse use;                 // by kind
  std::vector<LiveTensor> live;  // by name, largest first
};

// rows x row_length real tokens, every one of them scored but the first of each row: nothing of this shape takes more.
[[nodiscard]] MicroBatch largest_micro_batch(int64_t rows, int64_t row_length);

}  // namespace lathe
