// Refuses what cannot fit before anything of that size is allocated.
#pragma once

#include <cstdint>

#include "lathe/loop/run_config.h"
#include "lathe/model/config.h"

namespace lathe {

// Bytes that a run holds at least: its weights, and one micro-batch of rows x row_length tokens with every layer
// recomputed. What the run really takes is more; the rehearsal (engine/rehearsal.h) finds it.
struct LeastMemory {
  int64_t model = 0;  // weights; with gradients and moments where all of them train
  int64_t micro_batch = 0;
  [[nodiscard]] int64_t total() const { return model + micro_batch; }
};
[[nodiscard]] LeastMemory least_memory(const RunConfig& config, const ModelConfig& model, int64_t row_length,
                                       bool trains);

// Config error with the numbers, and what would fit, if that is more than `available` bytes.
void check_memory(const RunConfig& config, const ModelConfig& model, int64_t row_length, bool trains,
                  int64_t available);

}  // namespace lathe
