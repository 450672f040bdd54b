#include "lathe/kernels/access.h"
#include "lathe/kernels/elementwise.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_blocks.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

template <typename T>
LATHE_INLINE void fill_with(Queue& queue, T value, View x) {
  T* out = elements<T>(x);
  for_blocks(queue, x.size(), kElementBlock, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = value;
  });
}

void fill(Queue& queue, double value, View x) {
  switch (x.dtype) {
    case DType::kF64:
      return fill_with(queue, value, x);
    case DType::kF32:
      return fill_with(queue, static_cast<float>(value), x);
    case DType::kI32:
      return fill_with(queue, static_cast<int32_t>(value), x);
    case DType::kBF16:
      return fill_with(queue, to_bf16(static_cast<float>(value)), x);
    default:
      LATHE_CHECK(false, "fill of {}", dtype_name(x.dtype));
  }
}

void add(Queue& queue, ConstView a, ConstView b, View out) {
  LATHE_CHECK(a.size() == out.size() && b.size() == out.size(), "add: {} + {} = {}", a.size(), b.size(),
              out.size());
  const float* left = elements<float>(a);
  const float* right = elements<float>(b);
  float* sum = elements<float>(out);
  for_blocks(queue, out.size(), kElementBlock, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) sum[i] = left[i] + right[i];
  });
}

LATHE_INLINE double load(const double* x, int64_t i) {
  return x[i];
}
LATHE_INLINE float load(const float* x, int64_t i) {
  return x[i];
}
LATHE_INLINE float load(const BFloat16* x, int64_t i) {
  return to_f32(x[i]);
}
LATHE_INLINE float load(const Float16* x, int64_t i) {
  return to_float(x[i]);
}

template <typename Number>
LATHE_INLINE void store(double* y, int64_t i, Number value) {
  y[i] = static_cast<double>(value);
}
template <typename Number>
LATHE_INLINE void store(float* y, int64_t i, Number value) {
  y[i] = static_cast<float>(value);
}
template <typename Number>
LATHE_INLINE void store(BFloat16* y, int64_t i, Number value) {
  y[i] = to_bf16(static_cast<float>(value));
}
template <typename Number>
LATHE_INLINE void store(Float16* y, int64_t i, Number value) {
  y[i] = to_float16(static_cast<float>(value));
}

template <typename From, typename To>
void cast_elements(Queue& queue, ConstView x, View y) {
  const From* from = elements<From>(x);
  To* to = elements<To>(y);
  for_blocks(queue, y.size(), kElementBlock, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) store(to, i, load(from, i));
  });
}

template <typename From>
void cast_from(Queue& queue, ConstView x, View y) {
  switch (y.dtype) {
    case DType::kF64:
      return cast_elements<From, double>(queue, x, y);
    case DType::kF32:
      return cast_elements<From, float>(queue, x, y);
    case DType::kBF16:
      return cast_elements<From, BFloat16>(queue, x, y);
    case DType::kF16:
      return cast_elements<From, Float16>(queue, x, y);
    default:
      LATHE_CHECK(false, "cast to {}", dtype_name(y.dtype));
  }
}

void cast(Queue& queue, ConstView x, View y) {
  LATHE_CHECK(x.size() == y.size(), "cast of {} to {} elements", x.size(), y.size());
  switch (x.dtype) {
    case DType::kF64:
      return cast_from<double>(queue, x, y);
    case DType::kF32:
      return cast_from<float>(queue, x, y);
    case DType::kBF16:
      return cast_from<BFloat16>(queue, x, y);
    case DType::kF16:
      return cast_from<Float16>(queue, x, y);
    default:
      LATHE_CHECK(false, "cast from {}", dtype_name(x.dtype));
  }
}

void sigmoid_forward(Queue& queue, ConstView x, View y) {
  LATHE_CHECK(x.size() == y.size(), "sigmoid of {} to {} elements", x.size(), y.size());
  const float* in = elements<float>(x);
  float* out = elements<float>(y);
  for_blocks(queue, y.size(), kElementBlock, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = sigmoid_f32(in[i]);
  });
}

void sigmoid_backward(Queue& queue, ConstView dy, ConstView y, View dx) {
  LATHE_CHECK(dy.size() == dx.size() && y.size() == dx.size(), "sigmoid: {}, {}, {}", dy.size(), y.size(),
              dx.size());
  const float* grad = elements<float>(dy);
  const float* s = elements<float>(y);
  float* out = elements<float>(dx);
  for_blocks(queue, dx.size(), kElementBlock, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = grad[i] * s[i] * (1.0F - s[i]);
  });
}

template <typename T>
void copy_columns_of(Queue& queue, const CopyColumnsParams& p, ConstView x, View y) {
  const int64_t rows = x.dim(0);
  const int64_t in_width = x.dim(1);
  const int64_t out_width = y.dim(1);
  check_shape("copy_columns", "y", y, Shape{rows, out_width});
  LATHE_CHECK(p.from >= 0 && p.to >= 0 && p.columns >= 0 && p.from + p.columns <= x.dim(1) &&
                  p.to + p.columns <= y.dim(1),
              "copy_columns: {} columns from {} of {} to {} of {}", p.columns, p.from, x.dim(1), p.to,
              y.dim(1));
  const T* in = elements<T>(x) + p.from;
  T* out = elements<T>(y) + p.to;
  for_row_blocks(queue, rows, p.columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* from = in + r * in_width;
      T* to = out + r * out_width;
      for (int64_t c = 0; c < p.columns; ++c) to[c] = from[c];
    }
  });
}

void copy_columns(Queue& queue, const CopyColumnsParams& params, ConstView x, View y) {
  if (x.dtype == DType::kI32) {
    copy_columns_of<int32_t>(queue, params, x, y);
  } else {
    copy_columns_of<float>(queue, params, x, y);
  }
}

void add_scaled_rows(Queue& queue, ConstView x, ConstView scale, View out) {
  const int64_t rows = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("add_scaled_rows", "scale", scale, Shape{rows});
  check_shape("add_scaled_rows", "out", out, Shape{rows, cols});
  const float* in = elements<float>(x);
  const float* factors = elements<float>(scale);
  float* sums = elements<float>(out);
  for_row_blocks(queue, rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float factor = factors[r];
      const float* from = in + r * cols;
      float* to = sums + r * cols;
#pragma omp simd
      for (int64_t c = 0; c < cols; ++c) to[c] += factor * from[c];
    }
  });
}

void gather_rows(Queue& queue, ConstView x, ConstView index, View y) {
  const int64_t rows = index.dim(0);
  const int64_t rows_in = x.dim(0);
  const int64_t cols = x.dim(1);
  check_shape("gather_rows", "y", y, Shape{rows, cols});
  const float* in = elements<float>(x);
  const int32_t* which = elements<int32_t>(index);
  float* out = elements<float>(y);
  for_row_blocks(queue, rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      LATHE_CHECK(which[i] >= 0 && which[i] < rows_in, "gather_rows: index {} of {} rows", which[i], rows_in);
      const float* from = in + which[i] * cols;
      float* to = out + i * cols;
#pragma omp simd
      for (int64_t c = 0; c < cols; ++c) to[c] = from[c];
    }
  });
}

void scatter_add_rows(Queue& queue, ConstView x, ConstView index, View y) {
  const int64_t rows = index.dim(0);
  const int64_t rows_out = y.dim(0);
  const int64_t cols = y.dim(1);
  check_shape("scatter_add_rows", "x", x, Shape{rows, cols});
  const float* in = elements<float>(x);
  const int32_t* which = elements<int32_t>(index);
  float* out = elements<float>(y);
  for_row_blocks(queue, rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      LATHE_CHECK(which[i] >= 0 && which[i] < rows_out, "scatter_add_rows: index {} of {} rows", which[i],
                  rows_out);
      const float* from = in + i * cols;
      float* to = out + which[i] * cols;
#pragma omp simd
      for (int64_t c = 0; c < cols; ++c) to[c] += from[c];
    }
  });
}

LATHE_INLINE double widened(double x) {
  return x;
}
LATHE_INLINE double widened(float x) {
  return static_cast<double>(x);
}
LATHE_INLINE double widened(BFloat16 x) {
  return static_cast<double>(to_f32(x));
}

template <typename T>
LATHE_INLINE double sum_squares(const T* x, int64_t begin, int64_t end) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = begin; i < end; ++i) sum += widened(x[i]) * widened(x[i]);
  return sum;
}

template <typename T>
double sum_of_all(Queue& queue, ConstView x) {
  const T* in = elements<T>(x);
  const int64_t n = x.size();
  constexpr int64_t kWave = 256;  // blocks whose sums are kept at a time
  double partials[kWave];
  double sum = 0;
  for (int64_t start = 0; start < n; start += kWave * kElementBlock) {
    const int64_t count = min_of(kWave, ceil_div(n - start, kElementBlock));
    parallel_for(queue, count, [&](int64_t b) {
      const int64_t begin = start + b * kElementBlock;
      partials[b] = sum_squares(in, begin, min_of(begin + kElementBlock, n));
    });
    for (int64_t b = 0; b < count; ++b) sum += partials[b];
  }
  return sum;
}

double sum_of_squares(Queue& queue, ConstView x) {
  if (x.dtype == DType::kBF16) return sum_of_all<BFloat16>(queue, x);
  return x.dtype == DType::kF64 ? sum_of_all<double>(queue, x) : sum_of_all<float>(queue, x);
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

}  // namespace lathe::LATHE_ISA_NAMESPACE
