#include "lathe/kernels/access.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_blocks.h"
#include "lathe/kernels/swiglu.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

int64_t row_count(ConstView gate_up, ConstView used_rows) {
  if (used_rows.empty()) return gate_up.dim(0);
  const int64_t count = elements<int32_t>(used_rows)[used_rows.size() - 1];
  LATHE_CHECK(count >= 0 && count <= gate_up.dim(0), "swiglu: {} used rows of {}", count, gate_up.dim(0));
  return count;
}

void swiglu_forward(Queue& queue, ConstView gate_up, ConstView used_rows, View h) {
  const int64_t width = h.dim(1);
  check_shape("swiglu_forward", "gate_up", gate_up, Shape{h.dim(0), 2 * width});
  const float* in = elements<float>(gate_up);
  float* out = elements<float>(h);
  for_row_blocks(queue, row_count(gate_up, used_rows), width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = in + r * 2 * width;
      const float* up = gate + width;
      float* y = out + r * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) y[c] = silu_f32(gate[c]) * up[c];
    }
  });
}

void swiglu_backward(Queue& queue, ConstView dh, ConstView gate_up, View dgate_up) {
  const int64_t width = dh.dim(1);
  check_shape("swiglu_backward", "gate_up", gate_up, Shape{dh.dim(0), 2 * width});
  check_shape("swiglu_backward", "dgate_up", dgate_up, gate_up.shape);
  const float* grads = elements<float>(dh);
  const float* in = elements<float>(gate_up);
  float* out = elements<float>(dgate_up);
  for_row_blocks(queue, dh.dim(0), width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* grad = grads + r * width;
      const float* gate = in + r * 2 * width;
      const float* up = gate + width;
      float* dgate = out + r * 2 * width;
      float* dup = dgate + width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        const float s = sigmoid_f32(gate[c]);
        const float du = grad[c] * (gate[c] * s);
        dgate[c] = grad[c] * up[c] * silu_slope_f32(gate[c], s);
        dup[c] = du;
      }
    }
  });
}

// Returns <dhp, h>. `up` and `dup` stand `width` after `gate` and `dgate`.
float weighted_row(int64_t width, float weight, const float* dhp, const float* gate, float* dgate,
                   float* weighted_h) {
  const float* up = gate + width;
  float* dup = dgate + width;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < width; ++c) {
    const float s = sigmoid_f32(gate[c]);
    const float silu = gate[c] * s;
    const float h = silu * up[c];
    const float grad = weight * dhp[c];
    sum += dhp[c] * h;
    weighted_h[c] = weight * h;
    dgate[c] = grad * up[c] * silu_slope_f32(gate[c], s);
    dup[c] = grad * silu;
  }
  return sum;
}

void weighted_swiglu_backward(Queue& queue, ConstView dhp, ConstView gate_up, ConstView weight,
                              ConstView slot_of_row, ConstView used_rows, View dgate_up, View dweight,
                              View weighted_h) {
  const int64_t width = dhp.dim(1);
  const int64_t slots = weight.size();
  check_shape("weighted_swiglu_backward", "gate_up", gate_up, Shape{dhp.dim(0), 2 * width});
  check_shape("weighted_swiglu_backward", "dgate_up", dgate_up, gate_up.shape);
  check_shape("weighted_swiglu_backward", "weighted_h", weighted_h, dhp.shape);
  LATHE_CHECK(slots == dweight.size(), "weighted_swiglu_backward: {} weights, {} gradients", slots,
              dweight.size());
  const float* grads = elements<float>(dhp);
  const float* in = elements<float>(gate_up);
  const float* factors = elements<float>(weight);
  const int32_t* slot_of = optional_elements<int32_t>(slot_of_row);
  float* out = elements<float>(dgate_up);
  float* dfactors = elements<float>(dweight);
  float* scaled = elements<float>(weighted_h);
  for_row_blocks(queue, row_count(gate_up, used_rows), width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t slot = slot_of == nullptr ? r : slot_of[r];
      LATHE_CHECK(slot >= 0 && slot < slots, "weighted_swiglu_backward: slot {} of {}", slot, slots);
      dfactors[slot] = weighted_row(width, factors[slot], grads + r * width, in + r * 2 * width,
                                    out + r * 2 * width, scaled + r * width);
    }
  });
}

}  // namespace

void register_swiglu(KernelTable& table) {
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  table.weighted_swiglu_backward = weighted_swiglu_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
