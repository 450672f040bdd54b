// First-fit-decreasing packing of trajectories into rows of fixed length, one micro-batch (chunk of rows) at
// a time. A segment starts at 0 in an empty row, else at the row's load rounded up to the alignment, in the
// first row where it fits. pad_at_start: a row's tokens move right by its trailing padding, rounded down to
// pad_alignment.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lathe {

struct PackingOptions {
  int64_t row_length = 0;
  int64_t rows_per_micro_batch = 1;
  int64_t max_segments = 64;       // per row
  int64_t segment_alignment = 64;  // every segment but a row's first starts at a multiple
  bool pad_at_start = false;       // data.pad_position: start
  int64_t pad_alignment = 4096;
};

struct PackedSegment {
  int64_t item = 0;   // index into the lengths given
  int64_t start = 0;  // first token within the row, after any shift of pad_at_start
};
struct PackedRow {
  std::vector<PackedSegment> segments;
};
struct PackedMicroBatch {
  std::vector<PackedRow> rows;  // always rows_per_micro_batch, some may be empty
};

// Throws a config error for bad options (before any work) ...
void check_packing_options(const PackingOptions& options);
// ... and expects every length in [1, row_length] (the caller reports longer ones with their line).
// Items are taken by decreasing length, stable; leftovers of a chunk go on, in their original order, to the
// next.
[[nodiscard]] std::vector<PackedMicroBatch> pack(std::span<const int64_t> lengths,
                                                 const PackingOptions& options);

}  // namespace lathe
