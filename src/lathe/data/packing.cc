#include "lathe/data/packing.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "lathe/core/error.h"

namespace lathe {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void require_positive(const char* key, int64_t value) {
  if (value < 1)
    config_error(fmt::format("data.{}", key), fmt::format("{}, expected an integer >= 1", value));
}

// Places what fits and returns the rest, in its original order.
std::vector<int64_t> fill_chunk(std::span<const int64_t> lengths, const std::vector<int64_t>& items,
                                const PackingOptions& options, PackedMicroBatch& chunk) {
  const auto length = [&](int64_t item) { return lengths[static_cast<size_t>(item)]; };
  std::vector<int64_t> order = items;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  chunk.rows.resize(static_cast<size_t>(options.rows_per_micro_batch));
  std::vector<int64_t> loads(chunk.rows.size(), 0);
  std::vector<int64_t> leftovers;
  for (const int64_t item : order) {
    bool placed = false;
    for (size_t row = 0; row < loads.size() && !placed; ++row) {
      const int64_t start = round_up(loads[row], options.segment_alignment);
      auto& segments = chunk.rows[row].segments;
      placed = start + length(item) <= options.row_length &&
               static_cast<int64_t>(segments.size()) < options.max_segments;
      if (!placed) continue;
      segments.push_back({item, start});
      loads[row] = start + length(item);
    }
    if (!placed) leftovers.push_back(item);
  }
  std::sort(leftovers.begin(), leftovers.end());
  return leftovers;
}

void shift_to_end(std::span<const int64_t> lengths, const PackingOptions& options, PackedRow& row) {
  if (row.segments.empty()) return;
  const PackedSegment& last = row.segments.back();
  const int64_t end = last.start + lengths[static_cast<size_t>(last.item)];
  const int64_t shift = (options.row_length - end) / options.pad_alignment * options.pad_alignment;
  for (PackedSegment& segment : row.segments) segment.start += shift;
}

}  // namespace

void check_packing_options(const PackingOptions& options) {
  require_positive("row_length", options.row_length);
  require_positive("rows_per_micro_batch", options.rows_per_micro_batch);
  require_positive("max_segments", options.max_segments);
  require_positive("segment_alignment", options.segment_alignment);
  if (options.row_length > std::numeric_limits<int32_t>::max() / options.rows_per_micro_batch) {
    config_error(
        "data.row_length",
        fmt::format("{} x data.rows_per_micro_batch = {} tokens a micro-batch, expected fewer than 2^31",
                    options.row_length, options.rows_per_micro_batch));
  }
  if (!options.pad_at_start) return;
  require_positive("pad_alignment", options.pad_alignment);
  if (options.pad_alignment % options.segment_alignment != 0) {
    config_error("data.pad_alignment", fmt::format("{}, expected a multiple of data.segment_alignment = {}",
                                                   options.pad_alignment, options.segment_alignment));
  }
  if (options.pad_alignment >= options.row_length) {
    config_error(
        "data.pad_alignment",
        fmt::format("{}, expected less than data.row_length = {}: with data.pad_position: start no row could "
                    "ever move",
                    options.pad_alignment, options.row_length),
        fmt::format("set data.pad_alignment to a smaller multiple of {}, or drop data.pad_position",
                    options.segment_alignment));
  }
}

std::vector<PackedMicroBatch> pack(std::span<const int64_t> lengths, const PackingOptions& options) {
  check_packing_options(options);
  for (const int64_t length : lengths)
    LATHE_CHECK(length >= 1 && length <= options.row_length, "length {}", length);
  std::vector<int64_t> items(lengths.size());
  std::iota(items.begin(), items.end(), 0);
  std::vector<PackedMicroBatch> chunks;
  while (!items.empty()) {
    PackedMicroBatch chunk;
    items = fill_chunk(lengths, items, options, chunk);
    if (options.pad_at_start) {
      for (PackedRow& row : chunk.rows) shift_to_end(lengths, options, row);
    }
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

}  // namespace lathe
