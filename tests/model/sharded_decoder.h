// A small decoder over rows cut into shards, one thread per context rank: its outputs and every gradient, put together as one
// rank would have them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lathe/model/decoder.h"

#include "support/dropping_communicator.h"
#include "support/kernel_test.h"

namespace lathe::test {

struct ShardedRun {
  ModelConfig config;
  int64_t rows = 1;
  std::vector<int32_t> segments;  // [rows, row length]
  std::vector<int32_t>
      forced;  // experts of the first mixture-of-experts layer: [rows * row length, top_k], or empty
  DeviceOptions device;
  DecoderOptions options;
  MeshShape mesh;
  bool keep_all = true;  // false: layers are computed again in backward
  const DroppedExchange* dropped = nullptr;
};

[[nodiscard]] ModelConfig small_config(std::vector<LayerKind> layers);

// "hidden" [rows * row length, hidden] and the gradient of every parameter by name. Inputs depend on positions and segments
// alone; the gradient of the output is random, zero at padding.
[[nodiscard]] std::map<std::string, HostArray> run_sharded(const ShardedRun& run);

}  // namespace lathe::test
