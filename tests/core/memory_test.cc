#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "lathe/core/host_memory.h"
#include "lathe/core/rng.h"

namespace lathe {
namespace {

std::vector<std::string> names(const std::vector<LiveTensor>& tensors) {
  std::vector<std::string> out;
  for (const LiveTensor& tensor : tensors) out.push_back(tensor.name);
  return out;
}

TEST(Memory, CountsByKind) {
  const auto memory = make_host_memory();
  const Tensor a = memory->allocate(DType::kF32, {3, 5}, MemoryKind::kWeights, "a");
  {
    const Tensor b = memory->allocate(DType::kBF16, {7}, MemoryKind::kScratch, "b");
    EXPECT_EQ(memory->live().of(MemoryKind::kWeights), 60);
    EXPECT_EQ(memory->live().of(MemoryKind::kScratch), 14);
    EXPECT_EQ(memory->live().total(), 74);
  }
  EXPECT_EQ(memory->live().total(), 60);
  EXPECT_EQ(memory->peak().total(), 74);
  EXPECT_EQ(memory->peak().of(MemoryKind::kScratch), 14);
}

TEST(Memory, PeakIsTheUseOfOneMoment) {
  const auto memory = make_host_memory();
  Tensor a = memory->allocate(DType::kU8, {100}, MemoryKind::kActivations, "a");
  a.reset();
  const Tensor b = memory->allocate(DType::kU8, {90}, MemoryKind::kScratch, "b");
  EXPECT_EQ(memory->peak().of(MemoryKind::kActivations), 100);
  EXPECT_EQ(memory->peak().of(MemoryKind::kScratch), 0) << "kinds of different moments are not mixed";
}

TEST(Memory, NamesAtThePeakLargestFirst) {
  const auto memory = make_host_memory();
  const Tensor small = memory->allocate(DType::kU8, {10}, MemoryKind::kWeights, "small");
  Tensor large = memory->allocate(DType::kU8, {100}, MemoryKind::kScratch, "large");
  EXPECT_EQ(names(memory->live_at_peak()), (std::vector<std::string>{"large", "small"}));
  large.reset();
  const Tensor later = memory->allocate(DType::kU8, {50}, MemoryKind::kScratch, "later");
  const auto at_peak = memory->live_at_peak();
  EXPECT_EQ(names(at_peak), (std::vector<std::string>{"large", "small"}));
  EXPECT_EQ(at_peak[0].bytes, 100);
  EXPECT_EQ(at_peak[0].kind, MemoryKind::kScratch);
}

TEST(Memory, NamesBelongToTheFirstOfTwoEqualPeaks) {
  const auto memory = make_host_memory();
  Tensor a = memory->allocate(DType::kU8, {100}, MemoryKind::kWeights, "a");
  a.reset();
  const Tensor b = memory->allocate(DType::kU8, {100}, MemoryKind::kScratch, "b");
  EXPECT_EQ(names(memory->live_at_peak()), std::vector<std::string>{"a"});
  EXPECT_EQ(memory->peak().of(MemoryKind::kWeights), 100);
}

TEST(Memory, ResetPeakStartsFromWhatIsLive) {
  const auto memory = make_host_memory();
  const Tensor kept = memory->allocate(DType::kU8, {10}, MemoryKind::kWeights, "kept");
  Tensor gone = memory->allocate(DType::kU8, {100}, MemoryKind::kScratch, "gone");
  gone.reset();
  memory->reset_peak();
  EXPECT_EQ(memory->peak().total(), 10);
  EXPECT_EQ(names(memory->live_at_peak()), std::vector<std::string>{"kept"});
}

TEST(Memory, PoisonIsNanAlsoInReusedBlocks) {
  const auto memory = make_host_memory(true);
  for (int round = 0; round < 2; ++round) {
    Tensor x = memory->allocate(DType::kF32, {33}, MemoryKind::kScratch, "x");
    Tensor index = memory->allocate(DType::kI32, {3}, MemoryKind::kScratch, "index");
    for (int i = 0; i < 33; ++i) {
      float value = 0;
      std::memcpy(&value, x.view().data + i * 4, 4);
      EXPECT_TRUE(std::isnan(value)) << "round " << round;
    }
    int32_t value = 0;
    std::memcpy(&value, index.view().data, 4);
    EXPECT_EQ(value, -1);
    std::memset(x.view().data, 0, 33 * 4);
  }
}

TEST(Memory, BlocksAreAlignedAndApart) {
  const auto memory = make_host_memory();
  std::vector<Tensor> tensors;
  for (const int64_t n : {0, 1, 63, 64, 65, 255, 256, 257, 1000, 5000, 100000}) {
    tensors.push_back(memory->allocate(DType::kU8, {n}, MemoryKind::kScratch, "t"));
    const View view = tensors.back();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0U);
    std::memset(view.data, static_cast<int>(tensors.size()), static_cast<size_t>(n));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t j = 0; j < tensors[i].view().size(); ++j) {
      ASSERT_EQ(static_cast<size_t>(tensors[i].view().data[j]), i + 1);
    }
  }
}

TEST(Memory, FreedBlocksServeAgainWhateverTheirSizes) {
  HostMemory memory(false);
  std::vector<Tensor> blocks;
  const auto take = [&](int64_t bytes) {
    blocks.push_back(memory.allocate(DType::kU8, {bytes}, MemoryKind::kScratch, "t"));
  };
  for (int i = 0; i < 8; ++i) take(10 << 20);
  const int64_t extent = memory.extent();
  for (size_t i = 2; i < 8; ++i) blocks[i].reset();  // six neighbours become one gap
  take(55 << 20);
  EXPECT_EQ(memory.extent(), extent);
  blocks.back().reset();
  for (int i = 0; i < 5; ++i) take(11 << 20);
  EXPECT_EQ(memory.extent(), extent);
  take(8 << 20);
  EXPECT_GT(memory.extent(), extent) << "there is no gap of this size";
}

TEST(Memory, SmallBlocksTakeTheSmallestGap) {
  HostMemory memory(false);
  Tensor large = memory.allocate(DType::kU8, {1 << 20}, MemoryKind::kScratch, "large");
  const Tensor wall = memory.allocate(DType::kU8, {64}, MemoryKind::kScratch, "wall");
  Tensor small = memory.allocate(DType::kU8, {1000}, MemoryKind::kScratch, "small");
  const Tensor end = memory.allocate(DType::kU8, {64}, MemoryKind::kScratch, "end");
  const std::byte* gap = small.view().data;
  large.reset();
  small.reset();
  const Tensor again = memory.allocate(DType::kU8, {900}, MemoryKind::kScratch, "again");
  EXPECT_EQ(again.view().data, gap);
}

// Random sizes and lifetimes: no two live blocks overlap, and gaps are put together again.
TEST(Memory, RandomLifetimesKeepBlocksApart) {
  HostMemory memory(false);
  const CounterRng rng(5, 1);
  std::vector<std::pair<Tensor, uint8_t>> live;
  for (uint64_t i = 0; i < 4000; ++i) {
    if (live.size() > 40 || (!live.empty() && rng.uniform(3 * i) < 0.45)) {
      const auto at = static_cast<size_t>(rng.uniform(3 * i + 1) * static_cast<double>(live.size()));
      const View view = live[at].first;
      for (int64_t j = 0; j < view.size(); ++j)
        ASSERT_EQ(static_cast<uint8_t>(view.data[j]), live[at].second);
      live.erase(live.begin() + static_cast<ptrdiff_t>(at));
    } else {
      const auto bytes = static_cast<int64_t>(std::exp(9 * rng.uniform(3 * i + 2)));
      live.emplace_back(memory.allocate(DType::kU8, {bytes}, MemoryKind::kScratch, "t"),
                        static_cast<uint8_t>(i));
      std::memset(live.back().first.view().data, static_cast<uint8_t>(i), static_cast<size_t>(bytes));
    }
  }
  live.clear();
  const int64_t extent = memory.extent();
  const Tensor all = memory.allocate(DType::kU8, {extent - 64}, MemoryKind::kScratch, "all");
  EXPECT_EQ(memory.extent(), extent) << "everything freed is one gap";
}

TEST(Memory, CountingHoldsNothing) {
  const auto memory = make_counting_memory();
  const Tensor x = memory->allocate(DType::kF32, {int64_t{1} << 45}, MemoryKind::kWeights, "x");
  EXPECT_EQ(memory->peak().of(MemoryKind::kWeights), int64_t{4} << 45);
  const Tensor y = memory->allocate(DType::kI32, {2}, MemoryKind::kScratch, "y");
  std::array<int32_t, 2> out{7, 7};
  memory->copy_to_host(out.data(), y);
  EXPECT_EQ(out, (std::array<int32_t, 2>{0, 0}));
}

TEST(Memory, CopiesToAndFromTheHost) {
  const auto memory = make_host_memory();
  const Tensor x = memory->allocate(DType::kI32, {3}, MemoryKind::kScratch, "x");
  const std::array<int32_t, 3> in{1, -2, 3};
  memory->copy_from_host(x, in.data());
  std::array<int32_t, 3> out{};
  memory->copy_to_host(out.data(), x);
  EXPECT_EQ(out, in);
  const Tensor none = memory->allocate(DType::kI32, {0, 4}, MemoryKind::kScratch, "none");
  memory->copy_from_host(none, nullptr);
  memory->copy_to_host(nullptr, none);
}

TEST(Memory, TensorsMove) {
  const auto memory = make_host_memory();
  Tensor a = memory->allocate(DType::kU8, {10}, MemoryKind::kScratch, "a");
  Tensor b = memory->allocate(DType::kU8, {20}, MemoryKind::kScratch, "b");
  b = std::move(a);
  EXPECT_EQ(memory->live().total(), 10);
  EXPECT_EQ(b.view().size(), 10);
  Tensor c(std::move(b));
  EXPECT_EQ(memory->live().total(), 10);
  c.reset();
  EXPECT_TRUE(c.empty());
  EXPECT_EQ(memory->live().total(), 0);
}

TEST(Memory, TensorsNeedExtents) {
  EXPECT_THROW(static_cast<void>(make_host_memory()->allocate(DType::kU8, {}, MemoryKind::kScratch, "a")),
               Error);
}

TEST(Memory, KindsHaveNames) {
  EXPECT_STREQ(memory_kind_name(MemoryKind::kWeights), "weights");
  EXPECT_STREQ(memory_kind_name(MemoryKind::kScratch), "scratch");
}

}  // namespace
}  // namespace lathe
