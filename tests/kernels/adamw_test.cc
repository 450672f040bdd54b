#include "lathe/kernels/adamw.h"

#include <cmath>

#include <fmt/format.h>

#include "kernels/parity.h"

namespace lathe::test {
namespace {

struct State {
  HostArray m;
  HostArray v;
  HostArray master;
  HostArray weight;  // bf16; an empty shape where it is absent
};

void step(const Device& device, const AdamWParams& params, const HostArray& grad, State& state) {
  const Tensor m = to_device(device, state.m);
  const Tensor v = to_device(device, state.v);
  const Tensor master = to_device(device, state.master);
  const bool has_weight = state.weight.shape.rank() > 0;
  const Tensor weight = has_weight ? poisoned(device, grad.shape, DType::kBF16) : Tensor();
  device.kernels.adamw(*device.queue, params, to_device(device, grad), m, v, master, weight);
  state.m = to_host(device, m);
  state.v = to_host(device, v);
  state.master = to_host(device, master);
  if (has_weight) state.weight = to_host(device, weight);
}

State start(const Shape& shape, bool has_weight) {
  return {HostArray(shape), HostArray(shape), random_array(shape, 1),
          has_weight ? HostArray(shape) : HostArray()};
}

AdamWParams params_of_step(int t) {
  AdamWParams params{
      .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.7};
  params.bias1 = 1 - std::pow(params.beta1, t);
  params.bias2 = 1 - std::pow(params.beta2, t);
  return params;
}

// At the first step the bias-corrected moments are g and g^2: the step is lr times the sign of the gradient,
// plus decay.
TEST(AdamW, FirstStep) {
  State state{HostArray(Shape{1}), HostArray(Shape{1}), HostArray(Shape{1}, {1}), HostArray()};
  const AdamWParams params{
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .bias1 = 0.1, .bias2 = 0.05};
  step(make_ref_device(), params, HostArray(Shape{1}, {0.1}), state);
  EXPECT_NEAR(state.master[0], 0.9989, 2e-10);
  EXPECT_NEAR(state.m[0], 0.01, 1e-15);
  EXPECT_NEAR(state.v[0], 0.0005, 1e-15);
}

// Several steps against the formulas written out for one element.
TEST(AdamW, FollowsTheFormulas) {
  State state{HostArray(Shape{1}), HostArray(Shape{1}), HostArray(Shape{1}, {-0.3}), HostArray()};
  const Device device = make_ref_device();
  double m = 0;
  double v = 0;
  double w = -0.3;
  for (int t = 1; t <= 6; ++t) {
    const double grad = std::sin(3.0 * t);
    const double g = 0.7 * grad;
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    const double m_hat = m / (1 - std::pow(0.9, t));
    const double v_hat = v / (1 - std::pow(0.95, t));
    w -= 1e-2 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * w);
    step(device, params_of_step(t), HostArray(Shape{1}, {grad}), state);
    EXPECT_NEAR(state.m[0], m, 1e-14);
    EXPECT_NEAR(state.v[0], v, 1e-14);
    EXPECT_NEAR(state.master[0], w, 1e-14);
  }
}

TEST(AdamW, FastPathAgrees) {
  for (const int64_t n : {0, 1, 2, 7, 8, 15, 16, 17, 63, 65, 200, 40000}) {
    const Shape shape{n};
    expect_parity(fmt::format("{}", n), [&](const Device& d) {
      State state = start(shape, false);
      for (int t = 1; t <= 3; ++t) {
        step(d, params_of_step(t), random_array(shape, 10 + static_cast<uint64_t>(t)), state);
      }
      return std::vector<HostArray>{state.m, state.v, state.master};
    });
  }
}

TEST(AdamW, WeightIsTheRoundedMaster) {
  const Shape shape{3, 67};
  const auto check = [&](const Device& device) {
    State with = start(shape, true);
    State without = start(shape, false);
    step(device, params_of_step(1), random_array(shape, 9), with);
    step(device, params_of_step(1), random_array(shape, 9), without);
    expect_same(with.master, without.master, "master");
    expect_same(with.weight, to_host(device, to_device(device, with.master, DType::kBF16)), "weight");
  };
  check(make_ref_device());
  check(make_ref_device(DType::kF32));
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa));
}

TEST(AdamW, ZeroGradientMovesByDecayAlone) {
  for (const Isa isa : isas_at_hand()) {
    State state = start(Shape{33}, false);
    const HostArray before = to_host(make_cpu_device(isa), to_device(make_cpu_device(isa), state.master));
    step(make_cpu_device(isa), params_of_step(1), HostArray(Shape{33}), state);
    HostArray expected = before;
    for (double& x : expected.values) x *= 1 - 1e-2 * 0.1;
    expect_near(state.master, expected, 1e-7, "master");
  }
}

}  // namespace
}  // namespace lathe::test
