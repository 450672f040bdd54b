#include "lathe/mesh/operation.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lathe/core/error.h"

namespace lathe {
namespace {

constexpr int64_t kBlock = 1024;  // elements; a constant, so that the loops over a block become vectors

template <typename T>
void load(std::array<T, kBlock>* block, const std::byte* from, int64_t count) {
  std::memcpy(block->data(), from, static_cast<size_t>(count) * sizeof(T));
}

template <typename T>
void combine_block(std::array<T, kBlock>* total, const std::array<T, kBlock>& part, Combine combine) {
  if (combine == Combine::kSum) {
    for (size_t i = 0; i < kBlock; ++i) (*total)[i] += part[i];
    return;
  }
  for (size_t i = 0; i < kBlock; ++i) {
    // A comparison with NaN is false: NaN stays, and NaN is taken.
    (*total)[i] = (*total)[i] >= part[i] || (*total)[i] != (*total)[i] ? (*total)[i] : part[i];
  }
}

template <typename T>
void run_sum_of(const RankOrderSum& sum) {
  std::array<T, kBlock> total{};
  std::array<T, kBlock> part{};
  for (int64_t begin = 0; begin < sum.elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, sum.elements - begin);
    const int64_t offset = begin * static_cast<int64_t>(sizeof(T));
    load(&total, sum.sources.front() + offset, count);
    for (size_t s = 1; s < sum.sources.size(); ++s) {
      load(&part, sum.sources[s] + offset, count);
      combine_block(&total, part, sum.combine);
    }
    if (sum.accumulate) {
      load(&part, sum.to + offset, count);
      combine_block(&part, total, sum.combine);
      total = part;
    }
    std::memcpy(sum.to + offset, total.data(), static_cast<size_t>(count) * sizeof(T));
  }
}

}  // namespace

void run_sum(const RankOrderSum& sum) {
  LATHE_CHECK(!sum.sources.empty(), "a sum of nothing");
  if (sum.dtype == DType::kF64) return run_sum_of<double>(sum);
  LATHE_CHECK(sum.dtype == DType::kF32, "sums over ranks are of f32 or f64, not {}", dtype_name(sum.dtype));
  run_sum_of<float>(sum);
}

}  // namespace lathe
