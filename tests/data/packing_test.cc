#include "lathe/data/packing.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "lathe/core/error.h"

namespace lathe {
namespace {

PackingOptions options(int64_t row_length, int64_t rows, int64_t alignment) {
  PackingOptions o;
  o.row_length = row_length;
  o.rows_per_micro_batch = rows;
  o.segment_alignment = alignment;
  return o;
}

std::vector<int64_t> items(const PackedRow& row) {
  std::vector<int64_t> out;
  for (const PackedSegment& s : row.segments) out.push_back(s.item);
  return out;
}
std::vector<int64_t> starts(const PackedRow& row) {
  std::vector<int64_t> out;
  for (const PackedSegment& s : row.segments) out.push_back(s.start);
  return out;
}
using Ints = std::vector<int64_t>;

TEST(Packing, FirstFitDecreasingMatchesGoldenPlacements) {
  const Ints lengths = {5, 9, 3, 7, 4};
  const auto aligned = pack(lengths, options(16, 2, 4));
  ASSERT_EQ(aligned.size(), 2U);
  EXPECT_EQ(items(aligned[0].rows[0]), Ints({1, 4}));  // 9, 4
  EXPECT_EQ(starts(aligned[0].rows[0]), Ints({0, 12}));
  EXPECT_EQ(items(aligned[0].rows[1]), Ints({3, 0}));  // 7, 5
  EXPECT_EQ(starts(aligned[0].rows[1]), Ints({0, 8}));
  EXPECT_EQ(items(aligned[1].rows[0]), Ints({2}));
  EXPECT_TRUE(aligned[1].rows[1].segments.empty());

  const auto dense = pack(lengths, options(16, 2, 1));
  ASSERT_EQ(dense.size(), 1U);
  EXPECT_EQ(items(dense[0].rows[0]), Ints({1, 3}));
  EXPECT_EQ(items(dense[0].rows[1]), Ints({0, 4, 2}));
}

TEST(Packing, TiesKeepTheirOrderAndMaxSegmentsHolds) {
  PackingOptions o = options(16, 1, 1);
  o.max_segments = 2;
  const auto chunks = pack(Ints({4, 4, 4, 4, 4}), o);
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(items(chunks[0].rows[0]), Ints({0, 1}));
  EXPECT_EQ(items(chunks[1].rows[0]), Ints({2, 3}));
  EXPECT_EQ(items(chunks[2].rows[0]), Ints({4}));
}

TEST(Packing, PadAtStartShiftsByWholeAlignments) {
  PackingOptions o = options(20, 2, 4);
  o.pad_at_start = true;
  o.pad_alignment = 4;
  const auto chunk = pack(Ints({9}), o)[0];
  EXPECT_EQ(starts(chunk.rows[0]), Ints({8}));  // 11 tokens of padding, 8 of them move
  EXPECT_TRUE(chunk.rows[1].segments.empty());
  EXPECT_EQ(starts(pack(Ints({17}), o)[0].rows[0]), Ints({0}));
}

TEST(Packing, NothingToPackIsNoMicroBatch) {
  EXPECT_TRUE(pack(Ints(), options(16, 2, 1)).empty());
}

// A plain restatement of the rules, row by row, against random lengths.
TEST(Packing, EveryItemOnceWithoutOverlapWithinTheRow) {
  std::mt19937 engine(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t row_length = 32 + static_cast<int64_t>(engine() % 200);
    PackingOptions o =
        options(row_length, 1 + static_cast<int64_t>(engine() % 4), Ints({1, 4, 16})[engine() % 3]);
    o.max_segments = 1 + static_cast<int64_t>(engine() % 6);
    o.pad_at_start = engine() % 2 == 0;
    o.pad_alignment = o.segment_alignment;
    Ints lengths;
    for (size_t i = 0; i < engine() % 40; ++i)
      lengths.push_back(1 + static_cast<int64_t>(engine()) % row_length);
    for (int64_t& length : lengths) length = std::max<int64_t>(length, 1);
    std::vector<int> seen(lengths.size(), 0);
    for (const auto& chunk : pack(lengths, o)) {
      ASSERT_EQ(chunk.rows.size(), static_cast<size_t>(o.rows_per_micro_batch));
      ASSERT_FALSE(chunk.rows[0].segments.empty());
      for (const auto& row : chunk.rows) {
        ASSERT_LE(row.segments.size(), static_cast<size_t>(o.max_segments));
        int64_t end = 0;
        for (const auto& segment : row.segments) {
          ++seen[static_cast<size_t>(segment.item)];
          ASSERT_GE(segment.start, end);
          ASSERT_EQ((segment.start - row.segments[0].start) % o.segment_alignment, 0);
          end = segment.start + lengths[static_cast<size_t>(segment.item)];
          ASSERT_LE(end, row_length);
        }
        const bool moved = o.pad_at_start && !row.segments.empty();
        ASSERT_TRUE(!moved || row_length - end < o.pad_alignment);
      }
    }
    for (const int count : seen) ASSERT_EQ(count, 1);
  }
}

void expect_refused(const PackingOptions& o, const std::string& message) {
  try {
    check_packing_options(o);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_EQ(std::string(error.what()), message);
  }
}

TEST(Packing, BadOptionsAreRefusedByName) {
  expect_refused(options(0, 1, 1), "data.row_length: 0, expected an integer >= 1");
  expect_refused(options(8, 0, 1), "data.rows_per_micro_batch: 0, expected an integer >= 1");
  expect_refused(options(8, 1, 0), "data.segment_alignment: 0, expected an integer >= 1");
  PackingOptions o = options(256, 1, 64);
  o.max_segments = -1;
  expect_refused(o, "data.max_segments: -1, expected an integer >= 1");
  o.max_segments = 4;
  o.pad_at_start = true;
  o.pad_alignment = 96;
  expect_refused(o, "data.pad_alignment: 96, expected a multiple of data.segment_alignment = 64");
  o.pad_alignment = 256;
  expect_refused(
      o,
      "data.pad_alignment: 256, expected less than data.row_length = 256: with data.pad_position: start no "
      "row could ever move");
  o.pad_alignment = 0;
  expect_refused(o, "data.pad_alignment: 0, expected an integer >= 1");
  o.pad_alignment = 128;
  check_packing_options(o);
  expect_refused(
      options(int64_t{1} << 30, 4, 1),
      "data.row_length: 1073741824 x data.rows_per_micro_batch = 4 tokens a micro-batch, expected fewer "
      "than 2^31");
}

}  // namespace
}  // namespace lathe
