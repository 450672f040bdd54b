#include "lathe/model/context_shard.h"

#include <algorithm>

namespace lathe {

int balanced_owner(int half, int size) {
  return half < size ? half : 2 * size - 1 - half;
}

std::array<int, 2> balanced_halves(int rank, int size) {
  return {rank, 2 * size - 1 - rank};
}

ContextIndices context_indices(std::span<const int32_t> row_segments, int64_t rows, int64_t taps, int size,
                               int index) {
  const int64_t length = rows == 0 ? 0 : static_cast<int64_t>(row_segments.size()) / rows;
  LATHE_CHECK(length % (2 * size) == 0, "rows of {} tokens over {} context ranks", length, size);
  const int64_t shard = length / size;
  const int64_t half = shard / 2;
  const std::array<int, 2> halves = balanced_halves(index, size);
  ContextIndices out;
  for (int64_t row = 0; row < rows; ++row) {
    const auto segments =
        row_segments.subspan(static_cast<size_t>(row * length), static_cast<size_t>(length));
    int64_t before = index * shard;
    while (before > 0 && segments[static_cast<size_t>(before - 1)] == 0) --before;
    out.before_segment.push_back(before == 0 ? 0 : segments[static_cast<size_t>(before - 1)]);
    for (int64_t t = index * shard - (taps - 1); t < index * shard; ++t)
      out.tail_segments.push_back(t < 0 ? 0 : segments[static_cast<size_t>(t)]);
    for (size_t i = 0; i < 2; ++i) {
      const auto part = segments.subspan(static_cast<size_t>(halves[i] * half), static_cast<size_t>(half));
      out.balanced_segments[i].insert(out.balanced_segments[i].end(), part.begin(), part.end());
    }
  }
  return out;
}

void ContextShard::describe(BatchView& batch) const {
  batch.context_size = size;
  batch.context_index = index;
  batch.row_segments = size == 1 ? batch.segments : row_segments.view();
  batch.before_segment = before_segment;
  batch.tail_segments = tail_segments;
  for (size_t i = 0; i < 2; ++i) batch.balanced_segments[i] = balanced_segments[i];
}

ContextShard place_context_shard(const Device& device, std::span<const int32_t> row_segments, int64_t rows,
                                 int64_t taps, int size, int index) {
  ContextShard out;
  out.size = size;
  out.index = index;
  if (size == 1) return out;
  const auto place = [&](std::span<const int32_t> values, const char* name) {
    Tensor to = device.indices(Shape{static_cast<int64_t>(values.size())}, name);
    device.memory->copy_from_host(to, values.data());
    return to;
  };
  const ContextIndices indices = context_indices(row_segments, rows, taps, size, index);
  out.row_segments = place(row_segments, "batch.row_segments");
  out.before_segment = place(indices.before_segment, "batch.before_segment");
  out.tail_segments = place(indices.tail_segments, "batch.tail_segments");
  for (size_t i = 0; i < 2; ++i)
    out.balanced_segments[i] = place(indices.balanced_segments[i], "batch.balanced_segments");
  return out;
}

}  // namespace lathe
