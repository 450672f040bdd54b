// The engine of one rank of a mesh, of any size, on a device that holds and computes nothing: what it keeps, what it exchanges,
// and how long that takes where every kernel takes a second.
#pragma once

#include <memory>
#include <vector>

#include "lathe/mesh/ledger.h"
#include "lathe/mesh/virtual_clock.h"

#include "engine/tiny_model.h"

namespace lathe::test {

class PlanEngine {
 public:
  // Every layer keeps what backward needs.
  PlanEngine(const ModelConfig& config, const MeshShape& mesh, int rank, const EngineOptions& options,
             double seconds_per_byte = 0);

  [[nodiscard]] Engine& engine() { return *engine_; }
  [[nodiscard]] MemoryUse held() const { return device_->memory->live(); }
  [[nodiscard]] std::vector<LedgerEntry> exchanged() const;
  // Both wait, and return the seconds that passed.
  double score(const MicroBatch& batch);
  double fwd_bwd(const MicroBatch& batch);

 private:
  VirtualClock clock_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  Log silent_{false};
  std::unique_ptr<Engine> engine_;
};

// One row whose tokens are all scored but the first.
[[nodiscard]] MicroBatch scored_row(int64_t row_length);

}  // namespace lathe::test
