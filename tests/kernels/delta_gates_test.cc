#include "lathe/kernels/delta_gates.h"

#include <cmath>
#include <limits>

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

struct GatesCase {
  DeltaGatesParams params;
  std::vector<int32_t> segments;
  std::vector<HostArray> inputs;      // mixed, ba, a_log, dt_bias
  std::vector<HostArray> cotangents;  // of q, k, v, beta, g
};

void poison_padding(HostArray& array, const std::vector<int32_t>& segments) {
  const int64_t width = array.size() / static_cast<int64_t>(segments.size());
  for (size_t t = 0; t < segments.size(); ++t) {
    for (int64_t i = 0; segments[t] == 0 && i < width; ++i) {
      array[static_cast<int64_t>(t) * width + i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

GatesCase random_gates(const DeltaGatesParams& p, const std::vector<int32_t>& segments) {
  GatesCase c{p, segments, {}, {}};
  const int64_t width = 2 * p.key_heads * p.key_dim + p.value_heads * p.value_dim;
  c.inputs = {random_array({p.tokens, width}, 1, 0.5), random_array({p.tokens, 2 * p.value_heads}, 2, 3.0),
              random_array({p.value_heads}, 3), random_array({p.value_heads}, 4)};
  const Shape keys{p.tokens, p.key_heads, p.key_dim};
  const Shape gates{p.tokens, p.value_heads};
  c.cotangents = {random_array(keys, 5), random_array(keys, 6),
                  random_array({p.tokens, p.value_heads, p.value_dim}, 7), random_array(gates, 8),
                  random_array(gates, 9)};
  for (auto* arrays : {&c.inputs, &c.cotangents}) {
    for (HostArray& array : *arrays) {
      for (double& x : array.values) x = static_cast<double>(static_cast<float>(x));
      if (array.shape.rank() > 1) poison_padding(array, segments);
    }
  }
  return c;
}

std::vector<HostArray> forward(const Device& device, const GatesCase& c) {
  const DeltaGatesParams& p = c.params;
  std::vector<Tensor> out;
  for (const HostArray& cotangent : c.cotangents) out.push_back(poisoned(device, cotangent.shape));
  const Tensor segments = to_device(device, integer_array({p.tokens}, c.segments), DType::kI32);
  device.kernels.delta_gates_forward(*device.queue, p, to_device(device, c.inputs[0]),
                                     to_device(device, c.inputs[1]), to_device(device, c.inputs[2]),
                                     to_device(device, c.inputs[3]), segments, out[0], out[1], out[2], out[3],
                                     out[4]);
  std::vector<HostArray> host;
  for (const Tensor& tensor : out) host.push_back(to_host(device, tensor));
  return host;
}

// Gradients of the inputs; those of a_log and dt_bias are added to `before`, or left out.
std::vector<HostArray> backward(const Device& device, const GatesCase& c, double before = 0,
                                bool parameters = true) {
  const DeltaGatesParams& p = c.params;
  std::vector<Tensor> d;
  for (const HostArray& cotangent : c.cotangents) d.push_back(to_device(device, cotangent));
  std::vector<Tensor> x;
  for (const HostArray& input : c.inputs) x.push_back(to_device(device, input));
  const HostArray start({p.value_heads}, std::vector<double>(static_cast<size_t>(p.value_heads), before));
  std::vector<Tensor> out;
  out.push_back(poisoned(device, c.inputs[0].shape));
  out.push_back(poisoned(device, c.inputs[1].shape));
  out.push_back(parameters ? to_device(device, start) : Tensor());
  out.push_back(parameters ? to_device(device, start) : Tensor());
  const Tensor segments = to_device(device, integer_array({p.tokens}, c.segments), DType::kI32);
  device.kernels.delta_gates_backward(*device.queue, p, d[0], d[1], d[2], d[3], d[4], x[0], x[1], x[2], x[3],
                                      segments, out[0], out[1], out[2], out[3],
                                      device.scratch(delta_gates_backward_scratch(p), "scratch"));
  std::vector<HostArray> host;
  for (const Tensor& tensor : out) host.push_back(tensor.empty() ? HostArray() : to_host(device, tensor));
  return host;
}

TEST(DeltaGates, BackwardIsTheDerivativeOfForward) {
  const Device device = make_ref_device();
  for (const SegmentLayout& layout : segment_layouts(9)) {
    if (layout.name == "padding") continue;
    SCOPED_TRACE(layout.name);
    const GatesCase base = random_gates({9, 2, 6, 3, 2}, layout.segments);
    check_gradients(
        {"mixed", "ba", "a_log", "dt_bias"}, base.inputs,
        [&](const std::vector<HostArray>& x) {
          GatesCase c = base;
          c.inputs = x;
          return forward(device, c);
        },
        [&](const std::vector<HostArray>& x, const std::vector<HostArray>& cotangents) {
          GatesCase c = base;
          c.inputs = x;
          c.cotangents = cotangents;
          return backward(device, c);
        });
  }
}

TEST(DeltaGates, CpuIsTheReference) {
  const Device ref = make_ref_device();
  for (const Isa isa : isas_at_hand()) {
    const Device one = make_cpu_device(isa, 1);
    const Device two = make_cpu_device(isa, 2);
    for (const int64_t tokens : {1, 7, 127, 128, 129, 300}) {
      for (const SegmentLayout& layout : segment_layouts(tokens)) {
        for (const DeltaGatesParams& p :
             {DeltaGatesParams{tokens, 1, 1, 1, 1}, DeltaGatesParams{tokens, 3, 9, 17, 5}}) {
          const std::string what = fmt::format("{} tokens {} {}", isa_name(isa), tokens, layout.name);
          const GatesCase c = random_gates(p, layout.segments);
          const std::vector<HostArray> fast = forward(one, c);
          const std::vector<HostArray> expected = forward(ref, c);
          const std::vector<HostArray> again = forward(two, c);
          for (size_t i = 0; i < fast.size(); ++i) {
            expect_near(fast[i], expected[i], 1e-6, fmt::format("{} output {}", what, i));
            expect_same(again[i], fast[i], what);
          }
          const std::vector<HostArray> slopes = backward(one, c, 0.25);
          const std::vector<HostArray> expected_slopes = backward(ref, c, 0.25);
          const std::vector<HostArray> slopes_again = backward(two, c, 0.25);
          for (size_t i = 0; i < slopes.size(); ++i) {
            // With one element per head y is x / |x| up to eps: the gradient is a difference of nearly equal
            // terms.
            const double tolerance = p.key_dim == 1 && i == 0 ? 1e-4 : 2e-6;
            expect_near(slopes[i], expected_slopes[i], tolerance, fmt::format("{} gradient {}", what, i));
            expect_same(slopes_again[i], slopes[i], what);
          }
        }
      }
    }
  }
}

TEST(DeltaGates, ParameterGradientsMayBeUnwanted) {
  const GatesCase c = random_gates({130, 1, 2, 3, 2}, std::vector<int32_t>(130, 1));
  const auto check = [&](const Device& device) {
    const std::vector<HostArray> all = backward(device, c);
    const std::vector<HostArray> some = backward(device, c, 0, false);
    for (const size_t i : {0, 1}) expect_same(some[i], all[i], fmt::format("gradient {}", i));
  };
  check(make_ref_device());
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa));
}

TEST(DeltaGates, ValuesOfTheFormulas) {
  // Two tokens, one head: q = (3, 4), k = (0, 0), v = 5; then padding.
  GatesCase c{{2, 1, 1, 2, 1}, {1, 0}, {}, {}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  c.inputs = {HostArray({2, 5}, {3, 4, 0, 0, 5, nan, nan, nan, nan, nan}),
              HostArray({2, 2}, {0, 25, nan, nan}), HostArray({1}, {std::log(2.0)}), HostArray({1}, {1})};
  c.cotangents = {HostArray({2, 1, 2}, {0, 0, nan, nan}), HostArray({2, 1, 2}, {1, -2, nan, nan}),
                  HostArray({2, 1, 1}, {7, nan}), HostArray({2, 1}, {8, nan}), HostArray({2, 1}, {3, nan})};
  const auto check = [&](const Device& device) {
    const std::vector<HostArray> y = forward(device, c);
    const double root = std::sqrt(0.5);
    expect_near(y[0], HostArray({2, 1, 2}, {0.6 * root, 0.8 * root, 0, 0}), 1e-6, "q");
    expect_near(y[1], HostArray({2, 1, 2}, {0, 0, 0, 0}), 0, "k");
    expect_near(y[2], HostArray({2, 1, 1}, {5, 0}), 0, "v");
    expect_near(y[3], HostArray({2, 1}, {0.5, 0}), 1e-6, "beta");
    expect_near(y[4], HostArray({2, 1}, {-2 * 26.0, 0}), 1e-6, "g: softplus is linear far out");
    const std::vector<HostArray> d = backward(device, c);
    // A zero row that is no padding follows the formula: 1 / sqrt(eps) = 1000.
    expect_near(d[0], HostArray({2, 5}, {0, 0, 1000, -2000, 7, 0, 0, 0, 0, 0}), 1e-6, "mixed");
    expect_near(d[1], HostArray({2, 2}, {2, -6, 0, 0}), 1e-6, "ba");
    expect_near(d[2], HostArray({1}, {3 * -52.0}), 1e-6, "a_log");
    expect_near(d[3], HostArray({1}, {-6}), 1e-6, "dt_bias");
  };
  check(make_ref_device());
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa));
}

}  // namespace
}  // namespace lathe::test
