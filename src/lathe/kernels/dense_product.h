// The reference's matrix product on host arrays; for matmul_ref.cc and grouped_matmul_ref.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/core/view.h"
#include "lathe/kernels/access.h"

namespace lathe::ref {

// One element as T, rounded to bf16 on the way if asked.
template <typename T>
[[nodiscard]] T load(ConstView x, int64_t i, DType compute) {
  T value = 0;
  switch (x.dtype) {
    case DType::kF64:
      value = static_cast<T>(elements<double>(x)[i]);
      break;
    case DType::kF32:
      value = static_cast<T>(elements<float>(x)[i]);
      break;
    case DType::kBF16:
      value = static_cast<T>(to_float(elements<BFloat16>(x)[i]));
      break;
    default:
      LATHE_CHECK(false, "product of {}", dtype_name(x.dtype));
  }
  return compute == DType::kBF16 ? static_cast<T>(to_float(to_bfloat16(static_cast<float>(value)))) : value;
}

// op(x) as a dense row-major array; x is [rows, columns], op the transpose if trans.
template <typename T>
[[nodiscard]] std::vector<T> dense(ConstView x, bool trans, DType compute) {
  const int64_t rows = x.dim(0);
  const int64_t columns = x.dim(1);
  std::vector<T> out(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t to = trans ? j * rows + i : i * columns + j;
      out[static_cast<size_t>(to)] = load<T>(x, i * columns + j, compute);
    }
  }
  return out;
}

// c[m, n] = op(a) op(b) (+ c); sums run over k upwards.
template <typename T>
void dense_product(bool trans_a, bool trans_b, bool accumulate, DType compute, ConstView a, ConstView b,
                   View c) {
  const int64_t m = c.dim(0);
  const int64_t n = c.dim(1);
  const int64_t k = a.dim(trans_a ? 0 : 1);
  const std::vector<T> left = dense<T>(a, trans_a, compute);
  const std::vector<T> right = dense<T>(b, trans_b, compute);
  T* const out = elements<T>(c);
  std::vector<T> row(static_cast<size_t>(n));
  for (int64_t i = 0; i < m; ++i) {
    row.assign(row.size(), T{0});
    for (int64_t l = 0; l < k; ++l) {
      const T x = left[static_cast<size_t>(i * k + l)];
      const T* const y = right.data() + l * n;
      for (int64_t j = 0; j < n; ++j) row[static_cast<size_t>(j)] += x * y[j];
    }
    for (int64_t j = 0; j < n; ++j) {
      const T sum = row[static_cast<size_t>(j)];
      out[i * n + j] = accumulate ? out[i * n + j] + sum : sum;
    }
  }
}

}  // namespace lathe::ref
