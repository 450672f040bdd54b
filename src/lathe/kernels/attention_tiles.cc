#include "lathe/kernels/attention_tiles.h"

#include <algorithm>
#include <vector>

namespace lathe {
namespace {

// Moves begin to the first token that is not padding and returns the end of its segment, within [begin, end).
int64_t find_run(const int32_t* segments, int64_t& begin, int64_t end) {
  while (begin < end && segments[begin] == 0) ++begin;
  int64_t stop = begin;
  while (stop < end && segments[stop] == segments[begin]) ++stop;
  return stop;
}

struct SegmentRange {
  int32_t low;
  int32_t high;
};

SegmentRange range_of(const int32_t* segments, int64_t begin, int64_t end) {
  const auto [low, high] = std::minmax_element(segments + begin, segments + end);
  return {*low, *high};
}

int64_t count_by_ranges(const AttentionRow& row, int64_t q_tile, int64_t key_tile) {
  std::vector<SegmentRange> keys;
  for (int64_t begin = 0; begin < row.kv_tokens; begin += key_tile)
    keys.push_back(range_of(row.kv_segments, begin, std::min(begin + key_tile, row.kv_tokens)));
  int64_t count = 0;
  for (int64_t begin = 0; begin < row.q_tokens; begin += q_tile) {
    const int64_t end = std::min(begin + q_tile, row.q_tokens);
    const SegmentRange queries = range_of(row.q_segments, begin, end);
    const auto causal = static_cast<size_t>((row.q_offset + end - 1) / key_tile + 1);
    for (size_t tile = 0; tile < std::min(causal, keys.size()); ++tile)
      count += keys[tile].low <= queries.high && queries.low <= keys[tile].high ? 1 : 0;
  }
  return count;
}

}  // namespace

AttentionRun next_query_run(const AttentionRow& row, int64_t begin, int64_t end) {
  AttentionRun run;
  run.q_begin = begin;
  run.q_end = find_run(row.q_segments, run.q_begin, end);
  if (run.q_begin == end) return run;
  const int32_t segment = row.q_segments[run.q_begin];
  // Backwards from the last position that the run sees: normally the first key looked at belongs to it.
  run.key_end = std::min(row.q_offset + run.q_end, row.kv_tokens);
  while (run.key_end > 0 && row.kv_segments[run.key_end - 1] != segment) --run.key_end;
  run.key_begin = run.key_end;
  while (run.key_begin > 0 && row.kv_segments[run.key_begin - 1] == segment) --run.key_begin;
  return run;
}

AttentionRun next_key_run(const AttentionRow& row, int64_t begin, int64_t end) {
  AttentionRun run;
  run.key_begin = begin;
  run.key_end = find_run(row.kv_segments, run.key_begin, end);
  if (run.key_begin == end) return run;
  const int32_t segment = row.kv_segments[run.key_begin];
  run.q_begin = std::max<int64_t>(run.key_begin - row.q_offset, 0);
  while (run.q_begin < row.q_tokens && row.q_segments[run.q_begin] != segment) ++run.q_begin;
  run.q_end = run.q_begin;
  while (run.q_end < row.q_tokens && row.q_segments[run.q_end] == segment) ++run.q_end;
  return run;
}

int64_t count_attention_tiles(const AttentionRow& row, int64_t q_tile, int64_t key_tile, TileRule rule) {
  if (rule == TileRule::kRanges) return count_by_ranges(row, q_tile, key_tile);
  int64_t count = 0;
  for (int64_t begin = 0; begin < row.q_tokens; begin += q_tile) {
    const int64_t end = std::min(begin + q_tile, row.q_tokens);
    int64_t counted = 0;  // key tiles below this one are counted; runs come in the order of their keys
    for (AttentionRun run = next_query_run(row, begin, end); run.q_begin < end;
         run = next_query_run(row, run.q_end, end)) {
      if (run.key_begin == run.key_end) continue;
      const int64_t first = std::max(run.key_begin / key_tile, counted);
      const int64_t last = (run.key_end - 1) / key_tile;
      count += std::max<int64_t>(last + 1 - first, 0);
      counted = std::max(counted, last + 1);
    }
  }
  return count;
}

}  // namespace lathe
