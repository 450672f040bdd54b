#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/swiglu.h"

namespace lathe::ref {
namespace {

int64_t row_count(ConstView gate_up, ConstView used_rows) {
  if (used_rows.empty()) return gate_up.dim(0);
  const int64_t count = elements<int32_t>(used_rows)[used_rows.size() - 1];
  LATHE_CHECK(count >= 0 && count <= gate_up.dim(0), "swiglu: {} used rows of {}", count, gate_up.dim(0));
  return count;
}

void swiglu_forward(Queue& /*queue*/, ConstView gate_up, ConstView used_rows, View h) {
  const int64_t width = h.dim(1);
  check_shape("swiglu_forward", "gate_up", gate_up, Shape{h.dim(0), 2 * width});
  const int64_t rows = row_count(gate_up, used_rows);
  with_float_type(h.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < rows; ++r) {
      const T* gate = elements<T>(gate_up) + r * 2 * width;
      const T* up = gate + width;
      for (int64_t c = 0; c < width; ++c) elements<T>(h)[r * width + c] = gate[c] * sigmoid(gate[c]) * up[c];
    }
  });
}

void swiglu_backward(Queue& /*queue*/, ConstView dh, ConstView gate_up, View dgate_up) {
  const int64_t width = dh.dim(1);
  check_shape("swiglu_backward", "gate_up", gate_up, Shape{dh.dim(0), 2 * width});
  check_shape("swiglu_backward", "dgate_up", dgate_up, gate_up.shape);
  with_float_type(dh.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < dh.dim(0); ++r) {
      const T* gate = elements<T>(gate_up) + r * 2 * width;
      const T* up = gate + width;
      T* dgate = elements<T>(dgate_up) + r * 2 * width;
      for (int64_t c = 0; c < width; ++c) {
        const T grad = elements<T>(dh)[r * width + c];
        const T s = sigmoid(gate[c]);
        const T dup = grad * gate[c] * s;
        dgate[c] = grad * up[c] * silu_slope(gate[c], s);
        dgate[width + c] = dup;
      }
    }
  });
}

void weighted_swiglu_backward(Queue& /*queue*/, ConstView dhp, ConstView gate_up, ConstView weight,
                              ConstView slot_of_row, ConstView used_rows, View dgate_up, View dweight,
                              View weighted_h) {
  const int64_t width = dhp.dim(1);
  check_shape("weighted_swiglu_backward", "gate_up", gate_up, Shape{dhp.dim(0), 2 * width});
  check_shape("weighted_swiglu_backward", "dgate_up", dgate_up, gate_up.shape);
  check_shape("weighted_swiglu_backward", "weighted_h", weighted_h, dhp.shape);
  LATHE_CHECK(weight.size() == dweight.size(), "weighted_swiglu_backward: {} weights, {} gradients",
              weight.size(), dweight.size());
  const int64_t rows = row_count(gate_up, used_rows);
  const auto* slots = optional_elements<int32_t>(slot_of_row);
  with_float_type(dhp.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t slot = slots == nullptr ? r : slots[r];
      LATHE_CHECK(slot >= 0 && slot < weight.size(), "weighted_swiglu_backward: slot {} of {}", slot,
                  weight.size());
      const T factor = elements<T>(weight)[slot];
      const T* gate = elements<T>(gate_up) + r * 2 * width;
      const T* up = gate + width;
      T* dgate = elements<T>(dgate_up) + r * 2 * width;
      T sum = 0;
      for (int64_t c = 0; c < width; ++c) {
        const T grad = elements<T>(dhp)[r * width + c];
        const T s = sigmoid(gate[c]);
        const T h = gate[c] * s * up[c];
        const T dup = factor * grad * gate[c] * s;
        sum += grad * h;
        dgate[c] = factor * grad * up[c] * silu_slope(gate[c], s);
        dgate[width + c] = dup;
        elements<T>(weighted_h)[r * width + c] = factor * h;
      }
      elements<T>(dweight)[slot] = sum;
    }
  });
}

}  // namespace

void register_swiglu(KernelTable& table) {
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  table.weighted_swiglu_backward = weighted_swiglu_backward;
}

}  // namespace lathe::ref
