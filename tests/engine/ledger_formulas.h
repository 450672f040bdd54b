// What a step exchanges, rank by rank, from the shapes alone; f32.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lathe/mesh/ledger.h"

#include "engine/tiny_model.h"

namespace lathe::test {

// Trajectories of the formulas, a row each.
inline constexpr std::array<int, 2> kLengths{60, 41};

struct LedgerCase {
  MeshShape mesh;
  std::vector<LayerKind> layers = {{MixerKind::kLinearAttention, MlpKind::kMoe},
                                   {MixerKind::kFullAttention, MlpKind::kDense}};
  HeadMode head = HeadMode::kFused;
  int64_t head_chunk = 7;
  bool replicate = true;
  bool remat = false;
  int64_t token_chunks = 1;
  bool pipeline = false;
  DeltaContext delta = DeltaContext::kSequence;
  int64_t micro_batches = 1;
  bool known = false;  // cotangents
};

[[nodiscard]] ModelConfig config_of(const LedgerCase& c);

struct Traffic {
  int64_t count = 0;
  int64_t result_bytes = 0;
  int64_t wire_bytes = 0;
};
// By phase, kind, tensor and axes.
using Book = std::map<std::string, Traffic>;

[[nodiscard]] std::string line_of(Phase phase, CollectiveKind kind, const std::string& tensor, AxisSet axes);

// batch: what `rank` has of a micro-batch with a row for each of kLengths, all tokens scored but the first.
[[nodiscard]] Book expected_book(const LedgerCase& c, const MicroBatch& batch, int rank);

}  // namespace lathe::test
