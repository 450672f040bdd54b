// A micro-batch on the host: what one fwd_bwd call needs. R rows of T tokens, flat [R * T] in row order. Padding that no
// row needs is not computed: T is the longest row's use rounded up to 64, at most data.row_length; empty rows at the end
// are left out.
// On a mesh a rank holds its own rows alone, as many as every other rank: the micro-batch's rows, filled up with empty ones,
// in runs; T is the same on all.
// Only scored positions carry loss fields: lists over the n scored tokens, in row order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lathe/data/packing.h"
#include "lathe/data/trajectory.h"

namespace lathe {

struct MicroBatch {
  int64_t rows = 0;
  int64_t row_length = 0;
  std::vector<int32_t> ids;          // [R * T]; padding 0
  std::vector<int32_t> segment_ids;  // [R * T]; 0 = padding, 1.. within each row, ascending
  std::vector<int32_t> positions;    // [R * T]; 0.. within each segment, 0 on padding
  int64_t real_tokens = 0;

  // Scored tokens: token hidden_index[i] + 1 of the flat row is predicted from hidden state hidden_index[i].
  std::vector<int32_t> hidden_index;         // [n], ascending
  std::vector<float> temperature;            // [n]
  std::vector<int32_t> sequence;             // [n], the trajectory's number within the micro-batch, from 0
  std::vector<int32_t> completion_position;  // [n], index into the trajectory's completion
  std::vector<double> advantage;             // [n]; empty when only scoring
  std::vector<double> old_logprobs;          // [n] or empty: absent
  std::vector<double> ref_logprobs;          // [n] or empty
  std::vector<double> rollout_logprobs;      // [n] or empty; NaN = none
  std::vector<uint8_t> overlong;             // [sequences]: truncated
  std::vector<int64_t> item;                 // [sequences]: index of the trajectory in the step's list

  // Router replay, i32 [layers][R * T, top_k], -1 = own router; empty when no trajectory has it.
  std::vector<std::vector<int32_t>> forced_experts;

  // Of the whole micro-batch, over all ranks.
  int64_t all_rows = 0;
  int64_t all_real_tokens = 0;
  int64_t all_scored = 0;
  int64_t first_scored = 0;  // how many of these are in the rows before this rank's

  [[nodiscard]] int64_t tokens() const { return rows * row_length; }
  [[nodiscard]] int64_t scored() const { return static_cast<int64_t>(hidden_index.size()); }
  [[nodiscard]] int64_t sequences() const { return static_cast<int64_t>(item.size()); }
};

// Which rows are built here.
struct RowShare {
  int index = 0;
  int count = 1;                // rows are filled up to a multiple of it
  int64_t length_multiple = 1;  // T is filled up to a multiple of it, beyond data.row_length where it must
};

struct MicroBatchOptions {
  bool score_all_completion_tokens = false;  // lathe score: masked tokens are scored too
  int64_t moe_layers = 0;  // router replay is checked against these (data error on a mismatch)
  int64_t top_k = 0;
  int64_t experts = 0;
  bool use_forced_experts = true;  // moe.forced_routing
  RowShare share;
  std::string file;  // the rollouts' file, for error messages
};

// advantages: one vector per trajectory, [1] or [c]; empty span when only scoring.
// A per-token field (old, ref, rollout log-probs) is carried iff all trajectories have it; some but not all
// is a data error that names lines (checked over the whole step by the caller with check_carried_fields).
// Trajectories that never train do not decide; packed for scoring without the field they get NaN. With
// advantages, trajectories that never train have no scored token. A segment's first token is never scored.
[[nodiscard]] MicroBatch build_micro_batch(const PackedMicroBatch& packed,
                                           std::span<const Trajectory> trajectories,
                                           std::span<const std::vector<double>> advantages,
                                           int64_t row_length, const MicroBatchOptions& options);

// Data errors with file and line: another number of layers or choices than the model's, an expert it does not
// have. build_micro_batch asks it too; asking for the whole step first refuses before any work.
void check_routed_experts(std::span<const Trajectory> trajectories, const MicroBatchOptions& options);

void check_carried_fields(std::span<const Trajectory> trajectories, const std::string& file);

}  // namespace lathe
