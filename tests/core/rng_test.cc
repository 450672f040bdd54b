#include "lathe/core/rng.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Block = std::array<uint32_t, 4>;

// The published known answers of Philox 4x32-10 (Random123): counter and key of zeros, of ones, of digits of pi.
TEST(CounterRng, KnownAnswers) {
  EXPECT_EQ(CounterRng(0, 0).block(0), (Block{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(CounterRng(~0ULL, ~0ULL).block(~0ULL),
            (Block{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(CounterRng(0x299F31D0A4093822ULL, 0x0370734413198A2EULL).block(0x85A308D3243F6A88ULL),
            (Block{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

TEST(CounterRng, SeedStreamAndIndexAllCount) {
  std::set<Block> seen;
  for (const uint64_t seed : {0ULL, 1ULL, 1ULL << 32, 1ULL << 63}) {
    for (const uint64_t stream : {0ULL, 1ULL, 1ULL << 32, 1ULL << 63}) {
      for (const uint64_t index : {0ULL, 1ULL, 1ULL << 32, 1ULL << 63}) {
        seen.insert(CounterRng(seed, stream).block(index));
      }
    }
  }
  EXPECT_EQ(seen.size(), 64U);
}

TEST(CounterRng, OrderOfCallsDoesNotMatter) {
  const CounterRng rng(7, 3);
  const double later = rng.uniform(1000);
  static_cast<void>(rng.uniform(5));
  EXPECT_EQ(rng.uniform(1000), later);
  EXPECT_EQ(CounterRng(7, 3).uniform(1000), later);
}

TEST(CounterRng, UniformFillsTheUnitInterval) {
  const CounterRng rng(1, 2);
  constexpr int kCount = 100000;
  std::array<int, 10> bins{};
  double sum = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = rng.uniform(i);
    ASSERT_GT(x, 0);
    ASSERT_LT(x, 1);
    sum += x;
    ++bins[static_cast<size_t>(x * 10)];
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  for (const int bin : bins) EXPECT_NEAR(bin, kCount / 10, 400);  // four standard deviations
}

TEST(CounterRng, NormalHasTheMomentsOfANormal) {
  const CounterRng rng(1, 2);
  constexpr int kCount = 200000;
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  int beyond_two = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = rng.normal(i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    beyond_two += std::abs(x) > 2 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.015);
  EXPECT_NEAR(fourth / kCount, 3, 0.1);
  EXPECT_NEAR(beyond_two / static_cast<double>(kCount), 0.0455, 0.002);
}

TEST(CounterRng, StreamsAndNeighboursAreUncorrelated) {
  const CounterRng a(1, 2);
  const CounterRng b(1, 3);
  constexpr int kCount = 100000;
  double streams = 0;
  double neighbours = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    streams += a.normal(i) * b.normal(i);
    neighbours += a.normal(i) * a.normal(i + 1);
  }
  EXPECT_NEAR(streams / kCount, 0, 0.013);
  EXPECT_NEAR(neighbours / kCount, 0, 0.013);
}

TEST(StreamOf, IsFnv1a) {
  EXPECT_EQ(stream_of(""), 0xCBF29CE484222325ULL);
  EXPECT_EQ(stream_of("a"), 0xAF63DC4C8601EC8CULL);
  EXPECT_EQ(stream_of("foobar"), 0x85944171F73967E8ULL);
  EXPECT_NE(stream_of("layers.1.weight"), stream_of("layers.2.weight"));
}

}  // namespace
}  // namespace lathe
