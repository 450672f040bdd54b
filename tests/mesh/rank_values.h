// Tensors of which every rank knows what every other rank holds.
#pragma once

#include <cstring>
#include <vector>

#include "lathe/core/memory.h"
#include "lathe/mesh/communicator.h"

namespace lathe::test {

// A value of rank `rank` at element i; no two alike, sums that round.
template <typename T = float>
T value_of(int rank, int64_t i, int salt = 0) {
  return static_cast<T>(1 + rank) * static_cast<T>(0.1) +
         static_cast<T>((i * 7 + salt * 13) % 101) * static_cast<T>(1.37) - static_cast<T>(50);
}

template <typename T = float>
std::vector<T> values_of(int rank, int64_t count, int salt = 0) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(value_of<T>(rank, i, salt));
  return values;
}

template <typename T>
View view_of(std::vector<T>& values, DType dtype = DTypeOf<T>::kValue) {
  return {std::as_writable_bytes(std::span(values)).data(), dtype, {static_cast<int64_t>(values.size())}};
}

// ((rank 0 + rank 1) + rank 2) ...
template <typename T = float>
T sum_of(const std::vector<int>& ranks, int64_t i, int salt = 0) {
  T sum = value_of<T>(ranks.front(), i, salt);
  for (size_t r = 1; r < ranks.size(); ++r) sum += value_of<T>(ranks[r], i, salt);
  return sum;
}

inline std::vector<int> members_of(const Communicator& communicator, AxisSet axes) {
  std::vector<int> ranks;
  for (int i = 0; i < communicator.size(axes); ++i)
    ranks.push_back(communicator.mesh().member(communicator.rank(), axes, i));
  return ranks;
}

}  // namespace lathe::test
