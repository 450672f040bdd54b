// From a RunConfig to the parts of a run: device, model folder, engine. Shared by train and score.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/log.h"
#include "lathe/engine/engine.h"
#include "lathe/io/hf_folder.h"
#include "lathe/loop/run_config.h"

namespace lathe {

// The choices behind `auto` values: name of the key, and what was chosen and why.
using Notes = std::vector<std::pair<std::string, std::string>>;

struct LoadedModel {
  ModelConfig config;
  std::unique_ptr<HfFolder> folder;
  ParameterLayout layout;
};

// Memory that is free, divided among the ranks of this host.
[[nodiscard]] int64_t rank_memory_bytes();
// The mesh of a configuration that was loaded, with every axis known.
[[nodiscard]] MeshShape mesh_shape(const MeshSection& mesh);
// Of a device that agree_on_isa gives its kernels.
[[nodiscard]] DeviceOptions device_options(const RunConfig& config, Notes* notes);
// Before the device computes: all ranks use the instruction set of the rank that has the least, so that what each of them
// computes by itself is the same. `device` gets its kernels here, and `options` say so. Config error: LATHE_ISA differs.
void agree_on_isa(Communicator& communicator, Device& device, DeviceOptions& options, Notes* notes);
// Reads and checks config.json and every header; warnings go to the log.
[[nodiscard]] LoadedModel open_model(const std::string& path, Log& log);
[[nodiscard]] EngineOptions engine_options(const RunConfig& config, const DeviceOptions& device,
                                           Notes* notes);
[[nodiscard]] MicroBatchOptions micro_batch_options(const RunConfig& config, const ModelConfig& model,
                                                    const Communicator& communicator);
[[nodiscard]] PackingOptions packing_options(const RunConfig& config);

}  // namespace lathe
