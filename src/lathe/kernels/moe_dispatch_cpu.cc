#include <cstring>

#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_math.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

constexpr int64_t kRowBlock = 32;

int64_t block_end(int64_t block, int64_t rows) {
  return min_of((block + 1) * kRowBlock, rows);
}

// Counting sort. One thread: two passes over integers, next to nothing beside the products that follow.
void moe_sort(Queue& /*queue*/, const MoeSortParams& p, ConstView expert_view, View offsets_view,
              View slot_of_row_view, View row_of_slot_view, View wanted_view) {
  check_moe_sort(p, expert_view, offsets_view, slot_of_row_view, row_of_slot_view, wanted_view);
  const int64_t slots = expert_view.size();
  const auto capacity = static_cast<int32_t>(slot_of_row_view.size());
  const auto* expert = elements<int32_t>(expert_view);
  auto* offsets = elements<int32_t>(offsets_view);
  auto* slot_of_row = elements<int32_t>(slot_of_row_view);
  auto* row_of_slot = elements<int32_t>(row_of_slot_view);
  const auto in_window = [&p](int64_t e) { return e >= p.first && e < p.first + p.count; };
  for (int64_t e = 0; e <= p.count; ++e) offsets[e] = 0;
  for (int64_t s = 0; s < slots; ++s) {
    LATHE_CHECK(expert[s] < p.experts, "moe_sort: slot {} goes to expert {} of {}", s, expert[s], p.experts);
    if (in_window(expert[s])) ++offsets[expert[s] - p.first + 1];
  }
  for (int64_t e = 0; e < p.count; ++e) offsets[e + 1] += offsets[e];
  if (!wanted_view.empty()) elements<int32_t>(wanted_view)[0] = offsets[p.count];
  // offsets[e] walks through the rows of expert e and ends where e + 1 begins; then all move up by one.
  for (int64_t s = 0; s < slots; ++s) {
    row_of_slot[s] = -1;
    if (!in_window(expert[s])) continue;
    const int32_t row = offsets[expert[s] - p.first]++;
    if (row >= capacity) continue;
    slot_of_row[row] = static_cast<int32_t>(s);
    row_of_slot[s] = row;
  }
  for (int64_t e = p.count; e > 0; --e) offsets[e] = offsets[e - 1] < capacity ? offsets[e - 1] : capacity;
  offsets[0] = 0;
}

void moe_gather(Queue& queue, int64_t top_k, ConstView x_view, ConstView slot_of_row_view,
                ConstView offsets_view, View rows_view) {
  const int64_t dim = x_view.dim(1);
  check_shape("moe_gather", "rows", rows_view, {slot_of_row_view.size(), dim});
  const auto* x = elements<float>(x_view);
  const auto* slot_of_row = elements<int32_t>(slot_of_row_view);
  const int64_t used = elements<int32_t>(offsets_view)[offsets_view.size() - 1];
  auto* rows = elements<float>(rows_view);
  parallel_for(queue, ceil_div(used, kRowBlock), [&](int64_t block) {
    for (int64_t r = block * kRowBlock; r < block_end(block, used); ++r) {
      const float* from = x + slot_of_row[r] / top_k * dim;
      std::memcpy(rows + r * dim, from, static_cast<size_t>(dim) * sizeof(float));
    }
  });
}

void moe_combine(Queue& queue, ConstView rows_view, ConstView weight_view, ConstView row_of_slot_view,
                 View out_view) {
  const int64_t tokens = out_view.dim(0);
  const int64_t dim = out_view.dim(1);
  if (tokens == 0) return;
  const int64_t top_k = row_of_slot_view.size() / tokens;
  check_shape("moe_combine", "rows", rows_view, {rows_view.dim(0), dim});
  const auto* rows = elements<float>(rows_view);
  const auto* weight = optional_elements<float>(weight_view);
  const auto* row_of_slot = elements<int32_t>(row_of_slot_view);
  auto* out = elements<float>(out_view);
  parallel_for(queue, ceil_div(tokens, kRowBlock), [&](int64_t block) {
    for (int64_t t = block * kRowBlock; t < block_end(block, tokens); ++t) {
      float* __restrict sum = out + t * dim;
      bool first = true;
      for (int64_t s = t * top_k; s < (t + 1) * top_k; ++s) {
        if (row_of_slot[s] < 0) continue;
        const float* __restrict row = rows + row_of_slot[s] * dim;
        const float w = weight == nullptr ? 1.0F : weight[s];
        if (first) {
#pragma omp simd
          for (int64_t i = 0; i < dim; ++i) sum[i] = w * row[i];
        } else {
#pragma omp simd
          for (int64_t i = 0; i < dim; ++i) sum[i] += w * row[i];
        }
        first = false;
      }
      if (first) std::memset(sum, 0, static_cast<size_t>(dim) * sizeof(float));
    }
  });
}

void moe_counts(Queue& /*queue*/, ConstView offsets_view, std::span<int64_t> counts) {
  const auto* offsets = elements<int32_t>(offsets_view);
  int64_t* out = counts.data();
  const int64_t experts = offsets_view.size() - 1;
  for (int64_t e = 0; e < experts; ++e) out[e] = offsets[e + 1] - offsets[e];
}

int64_t moe_wanted(Queue& /*queue*/, ConstView wanted) {
  return elements<int32_t>(wanted)[0];
}

}  // namespace

void register_moe_dispatch(KernelTable& table) {
  table.moe_sort = moe_sort;
  table.moe_gather = moe_gather;
  table.moe_combine = moe_combine;
  table.moe_counts = moe_counts;
  table.moe_wanted = moe_wanted;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
