#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

void moe_sort(Queue& /*queue*/, const MoeSortParams& p, ConstView expert_view, View offsets_view,
              View slot_of_row_view, View row_of_slot_view, View wanted) {
  check_moe_sort(p, expert_view, offsets_view, slot_of_row_view, row_of_slot_view, wanted);
  const auto* expert = elements<int32_t>(expert_view);
  auto* offsets = elements<int32_t>(offsets_view);
  auto* slot_of_row = elements<int32_t>(slot_of_row_view);
  auto* row_of_slot = elements<int32_t>(row_of_slot_view);
  const int64_t slots = expert_view.size();
  const int64_t capacity = slot_of_row_view.size();
  for (int64_t s = 0; s < slots; ++s) {
    LATHE_CHECK(expert[s] < p.experts, "moe_sort: slot {} goes to expert {} of {}", s, expert[s], p.experts);
    row_of_slot[s] = -1;
  }
  int64_t row = 0;
  for (int64_t e = 0; e < p.count; ++e) {
    offsets[e] = static_cast<int32_t>(row < capacity ? row : capacity);
    for (int64_t s = 0; s < slots; ++s) {
      if (expert[s] != p.first + e) continue;
      if (row < capacity) {
        slot_of_row[row] = static_cast<int32_t>(s);
        row_of_slot[s] = static_cast<int32_t>(row);
      }
      ++row;
    }
  }
  offsets[p.count] = static_cast<int32_t>(row < capacity ? row : capacity);
  if (!wanted.empty()) elements<int32_t>(wanted)[0] = static_cast<int32_t>(row);
}

template <typename T>
void gather(int64_t top_k, ConstView x_view, ConstView slot_of_row_view, ConstView offsets_view,
            View rows_view) {
  const int64_t dim = x_view.dim(1);
  const T* x = elements<T>(x_view);
  const auto* slot_of_row = elements<int32_t>(slot_of_row_view);
  const int64_t used = elements<int32_t>(offsets_view)[offsets_view.size() - 1];
  T* rows = elements<T>(rows_view);
  for (int64_t r = 0; r < used; ++r) {
    const int64_t token = slot_of_row[r] / top_k;
    for (int64_t i = 0; i < dim; ++i) rows[r * dim + i] = x[token * dim + i];
  }
}

template <typename T>
void combine(ConstView rows_view, ConstView weight_view, ConstView row_of_slot_view, View out_view) {
  const int64_t tokens = out_view.dim(0);
  const int64_t dim = out_view.dim(1);
  if (tokens == 0) return;
  const int64_t top_k = row_of_slot_view.size() / tokens;
  const T* rows = elements<T>(rows_view);
  const T* weight = optional_elements<T>(weight_view);
  const auto* row_of_slot = elements<int32_t>(row_of_slot_view);
  T* out = elements<T>(out_view);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < dim; ++i) {
      T sum = 0;
      for (int64_t s = t * top_k; s < (t + 1) * top_k; ++s) {
        if (row_of_slot[s] < 0) continue;
        const T value = rows[row_of_slot[s] * dim + i];
        sum += weight == nullptr ? value : weight[s] * value;
      }
      out[t * dim + i] = sum;
    }
  }
}

void moe_gather(Queue& /*queue*/, int64_t top_k, ConstView x, ConstView slot_of_row, ConstView offsets,
                View rows) {
  const auto run = x.dtype == DType::kF64 ? gather<double> : gather<float>;
  run(top_k, x, slot_of_row, offsets, rows);
}

void moe_combine(Queue& /*queue*/, ConstView rows, ConstView weight, ConstView row_of_slot, View out) {
  const auto run = rows.dtype == DType::kF64 ? combine<double> : combine<float>;
  run(rows, weight, row_of_slot, out);
}

void moe_counts(Queue& /*queue*/, ConstView offsets_view, std::span<int64_t> counts) {
  const auto* offsets = elements<int32_t>(offsets_view);
  for (size_t e = 0; e < counts.size(); ++e) counts[e] = offsets[e + 1] - offsets[e];
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

}  // namespace lathe::ref
