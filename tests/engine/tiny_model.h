// A tiny hybrid model with every kind of layer, random weights and packed micro-batches, for tests of the whole program.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/engine/engine.h"

namespace lathe::test {

// qwen3_5_moe: a gated-delta-rule layer and a full-attention layer (or all of one kind), experts with a shared one; no
// two extents equal where it could hide a transposition.
[[nodiscard]] ModelConfig tiny_config(std::vector<LayerKind> layers, bool tied = false);
[[nodiscard]] inline std::vector<LayerKind> hybrid_layers() {
  return {{MixerKind::kLinearAttention, MlpKind::kMoe}, {MixerKind::kFullAttention, MlpKind::kMoe}};
}

struct TinyTrajectory {
  std::vector<int32_t> prompt;
  std::vector<int32_t> completion;
  double advantage = 1;
};
[[nodiscard]] std::vector<TinyTrajectory> random_trajectories(const ModelConfig& config,
                                                              const std::vector<int>& lengths, uint64_t seed);

struct TinyPacking {
  int64_t rows = 1;
  int64_t row_length = 64;
  int64_t alignment = 1;
};
// Packed by data/packing; old log-probs around -2 when `with_old`.
[[nodiscard]] std::vector<MicroBatch> tiny_batches(const std::vector<TinyTrajectory>& trajectories,
                                                   const TinyPacking& packing, bool with_old,
                                                   const RowShare& share = {});

// Device, communicator and engine of a model with weights that depend on the seed alone.
class TinyEngine {
 public:
  TinyEngine(const ModelConfig& config, const DeviceOptions& device, const EngineOptions& options,
             uint64_t seed = 7, const CommunicatorFactory& communicator = {});

  Engine& engine() { return *engine_; }
  Device& device() { return *device_; }
  Log& log() { return *log_; }
  // Gradient sums of one step over these micro-batches, by Hugging Face-independent parameter name order; then a step
  // with the optimizer as configured.
  StepResult step(const std::vector<MicroBatch>& batches);
  // All gradients, concatenated in parameter order, undivided, of the micro-batches since the last step.
  [[nodiscard]] std::vector<std::vector<double>> gradients(const std::vector<MicroBatch>& batches);
  [[nodiscard]] std::vector<std::vector<double>> values();

 private:
  ModelConfig config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<Engine> engine_;
};

[[nodiscard]] DeviceOptions ref_f64();
[[nodiscard]] DeviceOptions cpu_f32(int threads);
[[nodiscard]] EngineOptions tiny_options();

}  // namespace lathe::test
