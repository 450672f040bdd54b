// Random parameters of small models, for tests of whole layers and steps.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "lathe/core/rng.h"
#include "lathe/model/parameter_store.h"

namespace lathe::test {

// Away from zero gradients and from the defaults: decays that remember, norms near 1, projections of unit scale.
inline double random_parameter(const ParameterSpec& spec, double normal, double uniform) {
  switch (spec.role) {
    case ParameterRole::kALog:
      return -2 + uniform;
    case ParameterRole::kDtBias:
    case ParameterRole::kConv:
      return 0.5 * normal;
    case ParameterRole::kInputNorm:
    case ParameterRole::kPostAttentionNorm:
    case ParameterRole::kQNorm:
    case ParameterRole::kKNorm:
    case ParameterRole::kFinalNorm:
      return 0.2 * normal;
    case ParameterRole::kGatedNorm:
      return 1 + 0.2 * normal;
    default:
      return normal / std::sqrt(static_cast<double>(spec.row_elements));
  }
}

// They depend on the seed and the parameters' names alone.
inline void fill_parameters(ParameterStore& store, uint64_t seed) {
  for (size_t i = 0; i < store.parameters().size(); ++i) {
    const ParameterSpec& spec = *store.parameters()[i].spec;
    const CounterRng rng(seed, stream_of(spec.name()));
    std::vector<float> values(static_cast<size_t>(spec.shape.size()));
    const FlatShard& here = store.parameters()[i].shard;  // write_value looks at no other elements
    for (auto j = static_cast<uint64_t>(here.begin); j < static_cast<uint64_t>(here.end); ++j) {
      values[j] = static_cast<float>(random_parameter(spec, rng.normal(j), rng.uniform(j)));
    }
    store.write_value(i, values);
  }
}

}  // namespace lathe::test
