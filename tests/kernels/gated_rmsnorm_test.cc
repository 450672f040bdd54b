#include "lathe/kernels/gated_rmsnorm.h"

#include <fmt/format.h>

#include "kernels/parity.h"

namespace lathe::test {
namespace {

constexpr GatedRmsNormParams kParams{.eps = 0.1};

std::vector<HostArray> forward(const Device& device, const HostArray& x, const HostArray& z,
                               const HostArray& w) {
  const Tensor y = poisoned(device, x.shape);
  const Tensor rstd = poisoned(device, Shape{x.shape[0]});
  device.kernels.gated_rmsnorm_forward(*device.queue, kParams, to_device(device, x), to_device(device, z),
                                       to_device(device, w), y, rstd);
  return {to_host(device, y), to_host(device, rstd)};
}

// Returns dx, dz and dw; dw starts at `dw_before` (an empty shape: dw is absent).
std::vector<HostArray> backward(const Device& device, const HostArray& dy, const HostArray& x,
                                const HostArray& z, const HostArray& w, const HostArray& dw_before) {
  const bool want_dw = dw_before.shape.rank() > 0;
  const Tensor x_device = to_device(device, x);
  const Tensor z_device = to_device(device, z);
  const Tensor w_device = to_device(device, w);
  const Tensor y = poisoned(device, x.shape);
  const Tensor rstd = poisoned(device, Shape{x.shape[0]});
  device.kernels.gated_rmsnorm_forward(*device.queue, kParams, x_device, z_device, w_device, y, rstd);
  const Tensor dx = poisoned(device, x.shape);
  const Tensor dz = poisoned(device, x.shape);
  const Tensor dw = want_dw ? to_device(device, dw_before) : Tensor();
  const Tensor scratch =
      want_dw ? device.scratch(gated_rmsnorm_backward_scratch(x.shape[0], x.shape[1]), "scratch") : Tensor();
  device.kernels.gated_rmsnorm_backward(*device.queue, kParams, to_device(device, dy), x_device, z_device,
                                        w_device, rstd, dx, dz, dw, scratch);
  std::vector<HostArray> out{to_host(device, dx), to_host(device, dz)};
  if (want_dw) out.push_back(to_host(device, dw));
  return out;
}

TEST(GatedRmsNorm, Gradients) {
  const Device device = make_ref_device();
  for (const Shape& shape : {Shape{3, 7}, Shape{5, 1}, Shape{1, 11}}) {
    const HostArray x = random_array(shape, 1);
    const HostArray z = random_array(shape, 2, 2);
    const HostArray w = random_array(Shape{shape[1]}, 3);
    check_gradients(
        {"x", "z", "w"}, {x, z, w},
        [&](const auto& in) { return std::vector<HostArray>{forward(device, in[0], in[1], in[2])[0]}; },
        [&](const auto& in, const auto& dy) {
          return backward(device, dy[0], in[0], in[1], in[2], HostArray(Shape{shape[1]}));
        });
  }
}

TEST(GatedRmsNorm, FastPathAgrees) {
  for (const int64_t rows : {0, 1, 2, 65, 600}) {
    for (const int64_t cols : {1, 2, 7, 8, 15, 16, 17, 63, 65, 200}) {
      const HostArray x = random_array(Shape{rows, cols}, 1);
      const HostArray z = random_array(Shape{rows, cols}, 2, 3);
      const HostArray w = random_array(Shape{cols}, 3);
      const HostArray dy = random_array(Shape{rows, cols}, 4);
      const HostArray dw = random_array(Shape{cols}, 5);
      const std::string label = fmt::format("{} x {}", rows, cols);
      expect_parity(label + " forward", [&](const Device& d) { return forward(d, x, z, w); });
      expect_parity(label + " backward", [&](const Device& d) { return backward(d, dy, x, z, w, dw); });
    }
  }
}

TEST(GatedRmsNorm, FormulaOnARow) {
  const auto out = forward(make_ref_device(), HostArray(Shape{1, 2}, {3, 4}),
                           HostArray(Shape{1, 2}, {0.5, -2}), HostArray(Shape{2}, {1, 2}));
  const double rms = std::sqrt(12.5 + kParams.eps);
  const auto silu = [](double z) { return z / (1 + std::exp(-z)); };
  expect_near(out[0], HostArray(Shape{1, 2}, {3 / rms * silu(0.5), 4 / rms * 2 * silu(-2)}), 1e-15, "y");
  expect_near(out[1], HostArray(Shape{1}, {1 / rms}), 1e-15, "rstd");
}

TEST(GatedRmsNorm, WeightGradientIsAddedAndMayBeAbsent) {
  const HostArray x = random_array(Shape{530, 9}, 1);
  const HostArray z = random_array(Shape{530, 9}, 2);
  const HostArray w = random_array(Shape{9}, 3);
  const HostArray dy = random_array(Shape{530, 9}, 4);
  HostArray ones(Shape{9});
  for (double& value : ones.values) value = 1;
  const auto run = [&](const Device& device, double tolerance) {
    const auto from_zero = backward(device, dy, x, z, w, HostArray(Shape{9}));
    const auto from_one = backward(device, dy, x, z, w, ones);
    HostArray expected = from_zero[2];
    for (double& value : expected.values) value += 1;
    expect_near(from_one[2], expected, tolerance, "dw");
    const auto without = backward(device, dy, x, z, w, HostArray());
    expect_same(without[0], from_zero[0], "dx");
    expect_same(without[1], from_zero[1], "dz");
  };
  run(make_ref_device(), 1e-14);
  for (const Isa isa : isas_at_hand()) run(make_cpu_device(isa), 1e-6);
}

TEST(GatedRmsNorm, ExtremeGatesStayFinite) {
  const HostArray x = random_array(Shape{2, 17}, 1);
  const HostArray w = random_array(Shape{17}, 2);
  const HostArray dy = random_array(Shape{2, 17}, 3);
  HostArray z(Shape{2, 17});
  for (int64_t i = 0; i < z.size(); ++i) z[i] = (i % 2 == 0 ? 1 : -1) * 60.0 * static_cast<double>(i + 1);
  expect_parity("forward", [&](const Device& d) { return forward(d, x, z, w); });
  expect_parity("backward", [&](const Device& d) { return backward(d, dy, x, z, w, HostArray(Shape{17})); });
}

}  // namespace
}  // namespace lathe::test
