// In a file of its own: checks of a configuration need it, and nothing else of setup.h.
#include "lathe/loop/setup.h"

namespace lathe {

PackingOptions packing_options(const RunConfig& config) {
  return {.row_length = config.data.row_length,
          .rows_per_micro_batch = config.data.rows_per_micro_batch,
          .max_segments = config.data.max_segments,
          .segment_alignment = config.data.segment_alignment,
          .pad_at_start = config.data.pad_position == "start",
          .pad_alignment = config.data.pad_alignment};
}

}  // namespace lathe
