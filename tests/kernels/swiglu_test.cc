#include "lathe/kernels/swiglu.h"

#include <cmath>

#include <fmt/format.h>

#include "kernels/parity.h"

namespace lathe::test {
namespace {

Tensor optional_indices(const Device& device, const HostArray& array) {
  return array.shape.rank() == 0 ? Tensor() : to_device(device, array, DType::kI32);
}

HostArray forward(const Device& device, const HostArray& gate_up, const HostArray& used_rows = {}) {
  const Tensor h = poisoned(device, Shape{gate_up.shape[0], gate_up.shape[1] / 2});
  device.kernels.swiglu_forward(*device.queue, to_device(device, gate_up),
                                optional_indices(device, used_rows), h);
  return to_host(device, h);
}

HostArray backward(const Device& device, const HostArray& dh, const HostArray& gate_up) {
  const Tensor dgate_up = poisoned(device, gate_up.shape);
  device.kernels.swiglu_backward(*device.queue, to_device(device, dh), to_device(device, gate_up), dgate_up);
  return to_host(device, dgate_up);
}

// Returns dgate_up, dweight and weighted_h.
std::vector<HostArray> weighted_backward(const Device& device, const HostArray& dhp, const HostArray& gate_up,
                                         const HostArray& weight, const HostArray& slot_of_row = {},
                                         const HostArray& used_rows = {}) {
  const Tensor dgate_up = poisoned(device, gate_up.shape);
  const Tensor dweight = poisoned(device, weight.shape);
  const Tensor weighted_h = poisoned(device, dhp.shape);
  device.kernels.weighted_swiglu_backward(*device.queue, to_device(device, dhp), to_device(device, gate_up),
                                          to_device(device, weight), optional_indices(device, slot_of_row),
                                          optional_indices(device, used_rows), dgate_up, dweight, weighted_h);
  return {to_host(device, dgate_up), to_host(device, dweight), to_host(device, weighted_h)};
}

// y[r, :] = weight[slot(r)] h[r, :]: what the weighted backward is the backward of, with an identity for
// W_down.
HostArray weighted_forward(const Device& device, const HostArray& gate_up, const HostArray& weight,
                           const HostArray& slot_of_row) {
  HostArray y = forward(device, gate_up);
  const int64_t width = y.shape[1];
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t row = i / width;
    y[i] *= weight[slot_of_row.shape.rank() == 0 ? row : static_cast<int64_t>(slot_of_row[row])];
  }
  return y;
}

TEST(Swiglu, Gradients) {
  const Device device = make_ref_device();
  check_gradients(
      {"gate_up"}, {random_array(Shape{3, 14}, 1, 2)},
      [&](const auto& in) { return std::vector<HostArray>{forward(device, in[0])}; },
      [&](const auto& in, const auto& dh) { return std::vector<HostArray>{backward(device, dh[0], in[0])}; });
}

TEST(Swiglu, WeightedGradients) {
  const Device device = make_ref_device();
  for (const HostArray& slots : {HostArray(), integer_array(Shape{4}, {2, 0, 3, 1})}) {
    check_gradients(
        {"gate_up", "weight"}, {random_array(Shape{4, 10}, 1, 2), random_array(Shape{4}, 2)},
        [&](const auto& in) { return std::vector<HostArray>{weighted_forward(device, in[0], in[1], slots)}; },
        [&](const auto& in, const auto& dhp) {
          auto out = weighted_backward(device, dhp[0], in[0], in[1], slots);
          expect_near(out[2], weighted_forward(device, in[0], in[1], slots), 1e-14, "weighted_h");
          out.pop_back();
          return out;
        });
  }
}

TEST(Swiglu, GateComesFirst) {
  const HostArray h = forward(make_ref_device(), HostArray(Shape{1, 4}, {0, std::log(3.0), 5, 4}));
  expect_near(h, HostArray(Shape{1, 2}, {0, std::log(3.0) * 0.75 * 4}), 1e-15, "h");
}

TEST(Swiglu, FastPathAgrees) {
  for (const int64_t rows : {0, 1, 2, 17, 65, 200}) {
    for (const int64_t width : {1, 2, 7, 8, 15, 16, 17, 63, 65, 200}) {
      const HostArray gate_up = random_array(Shape{rows, 2 * width}, 1, 3);
      const HostArray dh = random_array(Shape{rows, width}, 2);
      const HostArray weight = random_array(Shape{rows}, 3);
      HostArray slots(Shape{rows});
      for (int64_t r = 0; r < rows; ++r) slots[r] = static_cast<double>(rows - 1 - r);
      const std::string label = fmt::format("{} x {}", rows, width);
      expect_parity(label, [&](const Device& d) {
        return std::vector<HostArray>{forward(d, gate_up), backward(d, dh, gate_up)};
      });
      expect_parity(label + " weighted",
                    [&](const Device& d) { return weighted_backward(d, dh, gate_up, weight); });
      expect_parity(label + " with slots",
                    [&](const Device& d) { return weighted_backward(d, dh, gate_up, weight, slots); });
    }
  }
}

void expect_used_rows_only(const Device& device) {
  const HostArray gate_up = random_array(Shape{6, 10}, 1);
  const HostArray dh = random_array(Shape{6, 5}, 2);
  const HostArray weight = random_array(Shape{6}, 3);
  const HostArray slots = integer_array(Shape{6}, {5, 1, 0, 2, -1, -1});
  // The count is the last element of an array of offsets.
  const HostArray offsets = integer_array(Shape{3}, {0, 2, 4});
  const HostArray h = forward(device, gate_up, offsets);
  const HostArray all = forward(device, gate_up);
  for (int64_t i = 0; i < h.size(); ++i) {
    EXPECT_EQ(std::isnan(h[i]), i >= 20) << i;
    if (i < 20) {
      EXPECT_EQ(h[i], all[i]);
    }
  }
  const auto out = weighted_backward(device, dh, gate_up, weight, slots, offsets);
  for (int64_t i = 0; i < out[0].size(); ++i) EXPECT_EQ(std::isnan(out[0][i]), i >= 40) << i;
  for (int64_t i = 0; i < out[1].size(); ++i) EXPECT_EQ(std::isnan(out[1][i]), i == 3 || i == 4) << i;
  for (int64_t i = 0; i < out[2].size(); ++i) EXPECT_EQ(std::isnan(out[2][i]), i >= 20) << i;
}

TEST(Swiglu, RowsBeyondTheUsedOnesAreLeftAlone) {
  expect_used_rows_only(make_ref_device());
  for (const Isa isa : isas_at_hand()) expect_used_rows_only(make_cpu_device(isa));
}

}  // namespace
}  // namespace lathe::test
