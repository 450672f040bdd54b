#include "lathe/kernels/output_gate.h"

#include <cmath>

#include <fmt/format.h>

#include "kernels/parity.h"

namespace lathe::test {
namespace {

HostArray forward(const Device& device, const HostArray& o, const HostArray& q_proj) {
  const Tensor a = poisoned(device, o.shape);
  device.kernels.output_gate_forward(*device.queue, to_device(device, o), to_device(device, q_proj), a);
  return to_host(device, a);
}

// Returns d_o and dq_proj, the query half of which starts (and has to stay) zero.
std::vector<HostArray> backward(const Device& device, const HostArray& da, const HostArray& o,
                                const HostArray& q_proj) {
  const Tensor d_o = poisoned(device, o.shape);
  HostArray start(q_proj.shape);
  const int64_t dim = o.shape[2];
  for (int64_t i = 0; i < start.size(); ++i) start[i] = i / dim % 2 == 0 ? 0 : std::nan("");
  const Tensor dq_proj = to_device(device, start);
  device.kernels.output_gate_backward(*device.queue, to_device(device, da), to_device(device, o),
                                      to_device(device, q_proj), d_o, dq_proj);
  return {to_host(device, d_o), to_host(device, dq_proj)};
}

TEST(OutputGate, Gradients) {
  const Device device = make_ref_device();
  check_gradients(
      {"o", "q_proj"}, {random_array(Shape{3, 2, 5}, 1), random_array(Shape{3, 2, 10}, 2)},
      [&](const auto& in) { return std::vector<HostArray>{forward(device, in[0], in[1])}; },
      [&](const auto& in, const auto& da) { return backward(device, da[0], in[0], in[1]); });
}

TEST(OutputGate, GateIsTheSecondHalfOfEachHead) {
  const HostArray o(Shape{1, 2, 1}, {10, 20});
  const HostArray q_proj(Shape{1, 2, 2}, {5, 0, 7, std::log(3.0)});
  expect_near(forward(make_ref_device(), o, q_proj), HostArray(Shape{1, 2, 1}, {5, 15}), 1e-15, "a");
}

TEST(OutputGate, FastPathAgrees) {
  for (const int64_t tokens : {0, 1, 17, 65, 200}) {
    for (const int64_t dim : {1, 7, 8, 15, 16, 17, 63, 65, 128}) {
      const HostArray o = random_array(Shape{tokens, 3, dim}, 1);
      const HostArray q_proj = random_array(Shape{tokens, 3, 2 * dim}, 2, 4);
      const HostArray da = random_array(Shape{tokens, 3, dim}, 3);
      const std::string label = fmt::format("{} x {}", tokens, dim);
      expect_parity(label, [&](const Device& d) { return std::vector<HostArray>{forward(d, o, q_proj)}; });
      expect_parity(label, [&](const Device& d) { return backward(d, da, o, q_proj); });
    }
  }
}

}  // namespace
}  // namespace lathe::test
