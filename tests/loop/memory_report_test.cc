#include "lathe/loop/memory_report.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(MemoryReport, AddsUpLayersByNameLargestFirst) {
  const std::vector<LiveTensor> live{{"layers.0.q_proj m", MemoryKind::kOptimizer, 2048},
                                     {"layers.11.q_proj m", MemoryKind::kOptimizer, 1024},
                                     {"embedding m", MemoryKind::kOptimizer, 512},
                                     {"head logits", MemoryKind::kScratch, int64_t{3} << 29}};
  MemoryUse use;
  for (const LiveTensor& tensor : live) use.bytes.at(static_cast<size_t>(tensor.kind)) += tensor.bytes;
  EXPECT_EQ(
      memory_report(use, live),
      (std::vector<std::string>{"3.5 KiB optimizer: layers.*.q_proj m 3.0 KiB (2 x), embedding m 0.5 KiB",
                                "1.50 GiB scratch: head logits 1.50 GiB"}));
}

TEST(MemoryReport, NamesTheLargestAndCountsTheRest) {
  std::vector<LiveTensor> live;
  MemoryUse use;
  for (int i = 0; i < 8; ++i) {
    live.push_back({std::string("x") + static_cast<char>('a' + i), MemoryKind::kWeights, 1024 * (i + 1)});
    use.bytes[0] += 1024 * (i + 1);
  }
  EXPECT_EQ(
      memory_report(use, live),
      (std::vector<std::string>{
          "36.0 KiB weights: xh 8.0 KiB, xg 7.0 KiB, xf 6.0 KiB, xe 5.0 KiB, xd 4.0 KiB, 3 more names"}));
}

}  // namespace
}  // namespace lathe
