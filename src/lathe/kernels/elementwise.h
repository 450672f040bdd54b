// Small element and row operations. Views of one call have the same float type (f32 or f64) unless said otherwise.
#pragma once

#include "lathe/core/parallel.h"
#include "lathe/core/view.h"

namespace lathe {

// x[:] = value; x is f32, f64, i32 or bf16.
using Fill = void(Queue& queue, double value, View x);
// out = a + b. out may be a or b.
using Add = void(Queue& queue, ConstView a, ConstView b, View out);
// y[:] = x[:] converted; any of f64, f32, bf16, f16 on either side (round to nearest even; f64 goes to the
// 16-bit types by way of f32).
using Cast = void(Queue& queue, ConstView x, View y);
// y = sigmoid(x).
using SigmoidForward = void(Queue& queue, ConstView x, View y);
// dx = dy * y * (1 - y). dx may be dy.
using SigmoidBackward = void(Queue& queue, ConstView dy, ConstView y, View dx);
// out[r, :] += scale[r] * x[r, :]; x, out: [rows, cols]; scale: [rows].
using AddScaledRows = void(Queue& queue, ConstView x, ConstView scale, View out);
// y[i, :] = x[index[i], :]; index: i32 [rows_out]; x: [rows_in, cols]; y: [rows_out, cols].
using GatherRows = void(Queue& queue, ConstView x, ConstView index, View y);
// y[index[i], :] += x[i, :]; the indices are distinct.
using ScatterAddRows = void(Queue& queue, ConstView x, ConstView index, View y);
// y[r, to + i] = x[r, from + i] for i < columns; x: [rows, any], y: [rows, any], both floats or both i32.
struct CopyColumnsParams {
  int64_t from = 0;
  int64_t to = 0;
  int64_t columns = 0;
};
using CopyColumns = void(Queue& queue, const CopyColumnsParams& params, ConstView x, View y);
// Sum of squares of x (f32, bf16 or f64), in f64 over blocks of fixed size added in order: the same for any thread count.
// Returned to the host: a device that computes nothing answers 1.
using SumOfSquares = double(Queue& queue, ConstView x);

}  // namespace lathe
