#include "lathe/kernels/rmsnorm.h"

#include <fmt/format.h>

#include "kernels/parity.h"

namespace lathe::test {
namespace {

std::vector<HostArray> forward(const Device& device, const RmsNormParams& params, const HostArray& x,
                               const HostArray& w) {
  const Tensor y = poisoned(device, x.shape);
  const Tensor rstd = poisoned(device, Shape{x.shape[0]});
  device.kernels.rmsnorm_forward(*device.queue, params, to_device(device, x), to_device(device, w), y, rstd);
  return {to_host(device, y), to_host(device, rstd)};
}

// Returns dx and dw; dw starts at `dw_before` (an empty shape: dw is absent).
std::vector<HostArray> backward(const Device& device, const RmsNormParams& params, const HostArray& dy,
                                const HostArray& x, const HostArray& w, const HostArray& dw_before) {
  const bool want_dw = dw_before.shape.rank() > 0;
  const Tensor x_device = to_device(device, x);
  const Tensor w_device = to_device(device, w);
  const Tensor y = poisoned(device, x.shape);
  const Tensor rstd = poisoned(device, Shape{x.shape[0]});
  device.kernels.rmsnorm_forward(*device.queue, params, x_device, w_device, y, rstd);
  const Tensor dx = poisoned(device, x.shape);
  const Tensor dw = want_dw ? to_device(device, dw_before) : Tensor();
  const Tensor scratch =
      want_dw ? device.scratch(rmsnorm_backward_scratch(x.shape[0], x.shape[1]), "scratch") : Tensor();
  device.kernels.rmsnorm_backward(*device.queue, params, to_device(device, dy), x_device, w_device, rstd, dx,
                                  dw, scratch);
  std::vector<HostArray> out{to_host(device, dx)};
  if (want_dw) out.push_back(to_host(device, dw));
  return out;
}

class RmsNormOffset : public testing::TestWithParam<double> {};

TEST_P(RmsNormOffset, Gradients) {
  const RmsNormParams params{.eps = 1e-3, .offset = GetParam()};
  const Device device = make_ref_device();
  for (const Shape& shape : {Shape{3, 7}, Shape{5, 1}, Shape{1, 11}}) {
    const HostArray x = random_array(shape, 1);
    const HostArray w = random_array(Shape{shape[1]}, 2);
    check_gradients(
        {"x", "w"}, {x, w},
        [&](const auto& in) { return std::vector<HostArray>{forward(device, params, in[0], in[1])[0]}; },
        [&](const auto& in, const auto& dy) {
          return backward(device, params, dy[0], in[0], in[1], HostArray(Shape{shape[1]}));
        });
  }
}

TEST_P(RmsNormOffset, FastPathAgrees) {
  for (const int64_t rows : {0, 1, 2, 65, 200, 300}) {
    for (const int64_t cols : {1, 2, 7, 8, 15, 16, 17, 63, 65, 200, 1030}) {
      // With one column and a small eps, dx is all cancellation.
      const RmsNormParams params{.eps = cols == 1 ? 0.5 : 1e-6, .offset = GetParam()};
      const HostArray x = random_array(Shape{rows, cols}, 1);
      const HostArray w = random_array(Shape{cols}, 2);
      const HostArray dy = random_array(Shape{rows, cols}, 3);
      const HostArray dw = random_array(Shape{cols}, 4);
      const std::string label = fmt::format("{} x {}", rows, cols);
      expect_parity(label + " forward", [&](const Device& d) { return forward(d, params, x, w); });
      expect_parity(label + " backward", [&](const Device& d) { return backward(d, params, dy, x, w, dw); });
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Offsets, RmsNormOffset, testing::Values(0.0, 1.0));

TEST(RmsNorm, FormulaOnARow) {
  const HostArray x(Shape{1, 2}, {3, 4});
  const HostArray w(Shape{2}, {1, 2});
  const auto out = forward(make_ref_device(), {.eps = 0, .offset = 1}, x, w);
  const double rms = std::sqrt(12.5);
  expect_near(out[0], HostArray(Shape{1, 2}, {3 / rms * 2, 4 / rms * 3}), 1e-15, "y");
  expect_near(out[1], HostArray(Shape{1}, {1 / rms}), 1e-15, "rstd");
}

TEST(RmsNorm, WeightGradientIsAddedAndMayBeAbsent) {
  const HostArray x = random_array(Shape{130, 9}, 1);
  const HostArray w = random_array(Shape{9}, 2);
  const HostArray dy = random_array(Shape{130, 9}, 3);
  HostArray ones(Shape{9});
  for (double& value : ones.values) value = 1;
  const auto run = [&](const Device& device, double tolerance) {
    const auto from_zero = backward(device, {}, dy, x, w, HostArray(Shape{9}));
    const auto from_one = backward(device, {}, dy, x, w, ones);
    HostArray expected = from_zero[1];
    for (double& value : expected.values) value += 1;
    expect_near(from_one[1], expected, tolerance, "dw");
    const auto without = backward(device, {}, dy, x, w, HostArray());
    expect_same(without[0], from_zero[0], "dx");
  };
  run(make_ref_device(), 1e-14);
  for (const Isa isa : isas_at_hand()) run(make_cpu_device(isa), 1e-6);
}

TEST(RmsNorm, ReferenceInSinglePrecision) {
  const HostArray x = random_array(Shape{5, 33}, 1);
  const HostArray w = random_array(Shape{33}, 2);
  const HostArray dy = random_array(Shape{5, 33}, 3);
  const Device single = make_ref_device(DType::kF32);
  const Device device = make_ref_device();
  expect_near(forward(single, {}, x, w)[0], forward(device, {}, x, w)[0], 2e-6, "y");
  const auto expected = backward(device, {}, dy, x, w, HostArray(Shape{33}));
  const auto actual = backward(single, {}, dy, x, w, HostArray(Shape{33}));
  for (size_t i = 0; i < expected.size(); ++i) expect_near(actual[i], expected[i], 2e-6, "gradient");
}

}  // namespace
}  // namespace lathe::test
