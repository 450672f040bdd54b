// What a run holds at its worst moment, for people: by kind, then by name.
#pragma once

#include <string>
#include <vector>

#include "lathe/engine/rehearsal.h"

namespace lathe {

// One line a kind with its largest tensors; those of equal name (a layer's parameters apart from its number) are added up.
[[nodiscard]] std::vector<std::string> memory_report(const MemoryUse& use,
                                                     const std::vector<LiveTensor>& live);

// The peak of a step with the larger of two micro-batches: the one with the most tokens, and the one with the most scored
// tokens. `micro_batches` is not empty.
[[nodiscard]] RehearsedPeak rehearse_largest(const Engine& engine,
                                             const std::vector<MicroBatch>& micro_batches);

}  // namespace lathe
