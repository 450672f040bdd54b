// Which keys the queries of a tile may see: the scheduling decision of attention, on segments and positions alone.
// Exact: a tile is visited if and only if it holds an allowed pair (key position <= query position, same segment, not
// padding). Segments are contiguous within a row, so the keys that a run of queries of one segment sees are one range,
// and so are the queries that see a run of keys.
#pragma once

#include <cstdint>

namespace lathe {

// One row. Query i sits at key position q_offset + i.
struct AttentionRow {
  const int32_t* q_segments = nullptr;
  const int32_t* kv_segments = nullptr;
  int64_t q_tokens = 0;
  int64_t kv_tokens = 0;
  int64_t q_offset = 0;
};

// Consecutive tokens of one segment, and the tokens of the other side that see them or that they see.
struct AttentionRun {
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t key_begin = 0;
  int64_t key_end = 0;
};

// The first run of queries that are not padding in [begin, end), and the keys that at least one of them sees (an empty
// range: none). q_begin == end: there is no such run.
[[nodiscard]] AttentionRun next_query_run(const AttentionRow& row, int64_t begin, int64_t end);
// The first run of keys that are not padding in [begin, end), and the queries that see at least one of them.
// key_begin == end: there is no such run.
[[nodiscard]] AttentionRun next_key_run(const AttentionRow& row, int64_t begin, int64_t end);

// How tiles are chosen.
enum class TileRule : uint8_t {
  kExact,  // as the runs above say: what the kernels of the CPU do
  kRanges,  // by what is known of whole tiles: some pair is causal, and the ranges of segment ids of both meet. Padding
  // has id 0 like any other segment. Never less than the exact rule; the same where nothing is padding.
};
// Pairs of a tile of q_tile queries and a tile of key_tile keys that are visited, both counted from the row's beginning.
[[nodiscard]] int64_t count_attention_tiles(const AttentionRow& row, int64_t q_tile, int64_t key_tile,
                                            TileRule rule = TileRule::kExact);

}  // namespace lathe
