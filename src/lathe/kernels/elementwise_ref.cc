#include <cmath>

#include "lathe/kernels/access.h"
#include "lathe/kernels/elementwise.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

void fill(Queue& /*queue*/, double value, View x) {
  const int64_t n = x.size();
  switch (x.dtype) {
    case DType::kF64:
      for (int64_t i = 0; i < n; ++i) elements<double>(x)[i] = value;
      return;
    case DType::kF32:
      for (int64_t i = 0; i < n; ++i) elements<float>(x)[i] = static_cast<float>(value);
      return;
    case DType::kI32:
      for (int64_t i = 0; i < n; ++i) elements<int32_t>(x)[i] = static_cast<int32_t>(value);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < n; ++i) elements<BFloat16>(x)[i] = to_bfloat16(static_cast<float>(value));
      return;
    default:
      LATHE_CHECK(false, "fill of {}", dtype_name(x.dtype));
  }
}

void add(Queue& /*queue*/, ConstView a, ConstView b, View out) {
  LATHE_CHECK(a.size() == out.size() && b.size() == out.size(), "add: {} + {} = {}", a.size(), b.size(),
              out.size());
  with_float_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < out.size(); ++i) elements<T>(out)[i] = elements<T>(a)[i] + elements<T>(b)[i];
  });
}

double load(ConstView x, int64_t i) {
  switch (x.dtype) {
    case DType::kF64:
      return elements<double>(x)[i];
    case DType::kF32:
      return elements<float>(x)[i];
    case DType::kBF16:
      return to_float(elements<BFloat16>(x)[i]);
    case DType::kF16:
      return to_float(elements<Float16>(x)[i]);
    default:
      LATHE_CHECK(false, "cast from {}", dtype_name(x.dtype));
  }
}

void store(View y, int64_t i, double value) {
  switch (y.dtype) {
    case DType::kF64:
      elements<double>(y)[i] = value;
      return;
    case DType::kF32:
      elements<float>(y)[i] = static_cast<float>(value);
      return;
    case DType::kBF16:
      elements<BFloat16>(y)[i] = to_bfloat16(static_cast<float>(value));
      return;
    case DType::kF16:
      elements<Float16>(y)[i] = to_float16(static_cast<float>(value));
      return;
    default:
      LATHE_CHECK(false, "cast to {}", dtype_name(y.dtype));
  }
}

void cast(Queue& /*queue*/, ConstView x, View y) {
  LATHE_CHECK(x.size() == y.size(), "cast of {} to {} elements", x.size(), y.size());
  for (int64_t i = 0; i < y.size(); ++i) store(y, i, load(x, i));
}

void sigmoid_forward(Queue& /*queue*/, ConstView x, View y) {
  LATHE_CHECK(x.size() == y.size(), "sigmoid of {} to {} elements", x.size(), y.size());
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < x.size(); ++i) elements<T>(y)[i] = sigmoid(elements<T>(x)[i]);
  });
}

void sigmoid_backward(Queue& /*queue*/, ConstView dy, ConstView y, View dx) {
  LATHE_CHECK(dy.size() == dx.size() && y.size() == dx.size(), "sigmoid: {}, {}, {}", dy.size(), y.size(),
              dx.size());
  with_float_type(dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < dx.size(); ++i) {
      const T s = elements<T>(y)[i];
      elements<T>(dx)[i] = elements<T>(dy)[i] * s * (T(1) - s);
    }
  });
}

void copy_columns(Queue& /*queue*/, const CopyColumnsParams& p, ConstView x, View y) {
  check_shape("copy_columns", "y", y, Shape{x.dim(0), y.dim(1)});
  LATHE_CHECK(p.from >= 0 && p.to >= 0 && p.columns >= 0 && p.from + p.columns <= x.dim(1) &&
                  p.to + p.columns <= y.dim(1),
              "copy_columns: {} columns from {} of {} to {} of {}", p.columns, p.from, x.dim(1), p.to,
              y.dim(1));
  const auto copy = [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < x.dim(0); ++r) {
      for (int64_t c = 0; c < p.columns; ++c)
        elements<T>(y)[r * y.dim(1) + p.to + c] = elements<T>(x)[r * x.dim(1) + p.from + c];
    }
  };
  if (x.dtype == DType::kI32) return copy(int32_t{0});
  with_float_type(x.dtype, copy);
}

void add_scaled_rows(Queue& /*queue*/, ConstView x, ConstView scale, View out) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("add_scaled_rows", "scale", scale, Shape{rows});
  check_shape("add_scaled_rows", "out", out, Shape{rows, cols});
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        elements<T>(out)[r * cols + c] += elements<T>(scale)[r] * elements<T>(x)[r * cols + c];
      }
    }
  });
}

void gather_rows(Queue& /*queue*/, ConstView x, ConstView index, View y) {
  const int64_t rows = index.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("gather_rows", "y", y, Shape{rows, cols});
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t from = elements<int32_t>(index)[i];
      LATHE_CHECK(from >= 0 && from < x.dim(0), "gather_rows: index {} of {} rows", from, x.dim(0));
      for (int64_t c = 0; c < cols; ++c) elements<T>(y)[i * cols + c] = elements<T>(x)[from * cols + c];
    }
  });
}

void scatter_add_rows(Queue& /*queue*/, ConstView x, ConstView index, View y) {
  const int64_t rows = index.dim(0);
  const int64_t cols = y.dim(1);
  check_shape("scatter_add_rows", "x", x, Shape{rows, cols});
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t to = elements<int32_t>(index)[i];
      LATHE_CHECK(to >= 0 && to < y.dim(0), "scatter_add_rows: index {} of {} rows", to, y.dim(0));
      for (int64_t c = 0; c < cols; ++c) elements<T>(y)[to * cols + c] += elements<T>(x)[i * cols + c];
    }
  });
}

double sum_of_squares(Queue& /*queue*/, ConstView x) {
  double sum = 0;
  if (x.dtype == DType::kBF16) {
    for (int64_t i = 0; i < x.size(); ++i) {
      const auto value = static_cast<double>(to_float(elements<BFloat16>(x)[i]));
      sum += value * value;
    }
    return sum;
  }
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < x.size(); ++i) {
      const auto value = static_cast<double>(elements<T>(x)[i]);
      sum += value * value;
    }
  });
  return sum;
}

}  // namespace

void register_elementwise(KernelTable& table) {
  table.fill = fill;
  table.add = add;
  table.cast = cast;
  table.sigmoid_forward = sigmoid_forward;
  table.sigmoid_backward = sigmoid_backward;
  table.copy_columns = copy_columns;
  table.add_scaled_rows = add_scaled_rows;
  table.gather_rows = gather_rows;
  table.scatter_add_rows = scatter_add_rows;
  table.sum_of_squares = sum_of_squares;
}

}  // namespace lathe::ref
