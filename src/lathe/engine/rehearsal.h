// Memory by rehearsal: one optimizer step of the real program on the plan device, which allocates by name and holds
// nothing. What it counts is what the run will hold, kind by kind and tensor by tensor, at the step's worst moment.
#pragma once

#include <vector>

#include "lathe/engine/engine.h"

namespace lathe {

struct RehearsedPeak {
  MemoryUse use;                 // by kind
  std::vector<LiveTensor> live;  // by name, largest first
};

// Two fwd_bwd calls of `micro_batch` (as many as may be in flight are prepared) and an update; the last `kept_layers`
// layers keep what backward needs, the others recompute it. `device`: the one the run will use. Only sizes and counts of
// `micro_batch` matter.
[[nodiscard]] RehearsedPeak rehearse_step(const DeviceOptions& device, const ModelConfig& config,
                                          const ParameterLayout& layout, const EngineOptions& options,
                                          const MicroBatch& micro_batch, int64_t kept_layers);

// rows x row_length real tokens, every one of them scored but the first of each row: nothing of this shape takes more.
[[nodiscard]] MicroBatch largest_micro_batch(int64_t rows, int64_t row_length);

}  // namespace lathe
