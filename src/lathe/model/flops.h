// Model FLOPs by the definition of perf/model_flops_per_s: 6 x the matrix parameters active per real token, the head at
// scored positions, the attention pairs really needed, and the delta rule; no recomputation, no padding.
#pragma once

#include <cstdint>
#include <span>

#include "lathe/model/config.h"

namespace lathe {

// Matrix parameters a token passes through in the layers (router, chosen experts and shared expert included).
[[nodiscard]] int64_t active_matrix_parameters(const ModelConfig& config);

// Forward and backward of trajectories of these lengths with `scored_tokens` projected to the vocabulary.
[[nodiscard]] double model_flops(const ModelConfig& config, std::span<const int64_t> lengths,
                                 int64_t scored_tokens);

}  // namespace lathe
