// A step of a tiny model on the ranks of a mesh, put together as one rank would have it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/dropping_communicator.h"

#include "engine/tiny_model.h"

namespace lathe::test {

struct MeshRun {
  ModelConfig config;
  MeshShape mesh;
  DeviceOptions device = ref_f64();
  EngineOptions options = tiny_options();
  // What a rank builds of the step.
  std::function<std::vector<MicroBatch>(const RowShare& share)> batches;
  const DroppedExchange* dropped = nullptr;
};

using ByName = std::map<std::string, std::vector<double>>;

struct WholeStep {
  ByName gradients;  // undivided; parameters that train
  ByName values;     // after the step
  StepResult result;
};

[[nodiscard]] WholeStep run_whole_step(const MeshRun& run);

// Four rows of 64 * scale positions, cut anywhere by sequences, of which all but prompts are scored.
[[nodiscard]] std::function<std::vector<MicroBatch>(const RowShare& share)> some_batches(
    const ModelConfig& config, int scale = 1);

// Largest relative difference of a gradient, and of the loss.
[[nodiscard]] double difference(const WholeStep& actual, const WholeStep& expected);

}  // namespace lathe::test
