#include "lathe/kernels/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Ints = std::vector<int32_t>;

struct Routed {
  HostArray expert;
  HostArray weight;
};

struct Problem {
  RouterParams params;
  HostArray logits;
  std::optional<Ints> segments;
  std::optional<Ints> forced;

  [[nodiscard]] int64_t tokens() const { return logits.shape[0]; }
};

Routed forward(const Device& device, const Problem& p) {
  const Shape shape{p.tokens(), p.params.top_k};
  const Tensor logits = to_device(device, p.logits);
  Tensor segments;
  Tensor forced;
  if (p.segments) segments = to_device(device, integer_array({p.tokens()}, *p.segments), DType::kI32);
  if (p.forced) forced = to_device(device, integer_array(shape, *p.forced), DType::kI32);
  const Tensor expert = poisoned(device, shape, DType::kI32);
  const Tensor weight = poisoned(device, shape);
  device.kernels.router_forward(*device.queue, p.params, logits, segments, forced, expert, weight);
  return {to_host(device, expert), to_host(device, weight)};
}

HostArray backward(const Device& device, const Problem& p, const HostArray& expert,
                   const HostArray& dweight) {
  const Tensor dlogits = poisoned(device, p.logits.shape);
  device.kernels.router_backward(*device.queue, p.params, to_device(device, dweight),
                                 to_device(device, p.logits), to_device(device, expert, DType::kI32),
                                 dlogits);
  return to_host(device, dlogits);
}

Problem random_problem(int64_t tokens, int64_t experts, int64_t top_k, bool norm_topk) {
  return {{experts, top_k, norm_topk}, random_array({tokens, experts}, 7, 2), std::nullopt, std::nullopt};
}

// Every device that must obey the contract.
template <typename Fn>
void on_all_devices(const Fn& fn) {
  fn(make_ref_device(DType::kF64));
  fn(make_ref_device(DType::kF32));
  for (const Isa isa : isas_at_hand()) fn(make_cpu_device(isa));
}

TEST(Router, GradientsMatchFiniteDifferences) {
  const Device ref = make_ref_device();
  for (const bool norm_topk : {true, false}) {
    for (const int64_t top_k : {1, 3, 7}) {
      // The gradient is 0 where the weight is always 1.
      if (norm_topk && top_k == 1) continue;
      Problem problem = random_problem(9, 7, top_k, norm_topk);
      problem.segments = Ints{1, 1, 1, 0, 2, 2, 2, 0, 0};
      const HostArray expert = forward(ref, problem).expert;
      const auto with = [&](const HostArray& logits) {
        Problem moved = problem;
        moved.logits = logits;
        return moved;
      };
      SCOPED_TRACE(testing::Message() << "top_k " << top_k << " norm " << norm_topk);
      check_gradients(
          {"logits"}, {problem.logits},
          [&](const auto& in) { return std::vector{forward(ref, with(in[0])).weight}; },
          [&](const auto& in, const auto& cotangents) {
            return std::vector{backward(ref, with(in[0]), expert, cotangents[0])};
          });
    }
  }
}

TEST(Router, GradientsOfForcedChoicesMatchFiniteDifferences) {
  const Device ref = make_ref_device();
  for (const bool norm_topk : {true, false}) {
    Problem problem = random_problem(4, 6, 2, norm_topk);
    problem.forced = Ints{5, 0, -1, -1, 2, 3, 4, 1};
    const HostArray expert = forward(ref, problem).expert;
    check_gradients(
        {"logits"}, {problem.logits},
        [&](const auto& in) {
          Problem moved = problem;
          moved.logits = in[0];
          return std::vector{forward(ref, moved).weight};
        },
        [&](const auto& in, const auto& cotangents) {
          Problem moved = problem;
          moved.logits = in[0];
          return std::vector{backward(ref, moved, expert, cotangents[0])};
        });
  }
}

TEST(Router, UnchosenLogitsHaveNoGradientWhenWeightsAreNormalised) {
  on_all_devices([](const Device& device) {
    const Problem problem = random_problem(20, 16, 4, true);
    const Routed routed = forward(device, problem);
    const HostArray dlogits = backward(device, problem, routed.expert, random_array({20, 4}, 8));
    for (int64_t t = 0; t < 20; ++t) {
      int nonzero = 0;
      for (int64_t e = 0; e < 16; ++e) nonzero += dlogits[t * 16 + e] != 0 ? 1 : 0;
      EXPECT_EQ(nonzero, 4);
    }
  });
}

TEST(Router, FastPathMatchesReference) {
  const Device ref = make_ref_device();
  struct Size {
    int64_t tokens, experts, top_k;
  };
  for (const Size size : {Size{1, 1, 1}, Size{17, 5, 2}, Size{33, 64, 8}, Size{50, 131, 10}, Size{7, 9, 9}}) {
    for (const bool norm_topk : {true, false}) {
      Problem problem = random_problem(size.tokens, size.experts, size.top_k, norm_topk);
      problem.segments = Ints(static_cast<size_t>(size.tokens), 1);
      problem.segments->back() = 0;
      // What f32 cannot tell apart must not decide the choice.
      for (double& x : problem.logits.values) x = static_cast<float>(x);
      const Routed want = forward(ref, problem);
      const HostArray dweight = random_array(want.weight.shape, 9);
      const HostArray want_dlogits = backward(ref, problem, want.expert, dweight);
      for (const Isa isa : isas_at_hand()) {
        const Device one = make_cpu_device(isa, 1);
        const Device two = make_cpu_device(isa, 2);
        const Routed got = forward(two, problem);
        SCOPED_TRACE(testing::Message() << isa_name(isa) << ", experts " << size.experts);
        expect_same(got.expert, want.expert, "expert");
        expect_near(got.weight, want.weight, 2e-6, "weight");
        expect_same(forward(one, problem).weight, got.weight, "weight with 1 and 2 threads");
        const HostArray dlogits = backward(two, problem, want.expert, dweight);
        // norm_topk with one expert: exactly zero up to rounding of dw - dw.
        if (!(norm_topk && size.top_k == 1)) expect_near(dlogits, want_dlogits, 5e-6, "dlogits");
        expect_same(backward(one, problem, want.expert, dweight), dlogits, "dlogits with 1 and 2 threads");
      }
    }
  }
}

TEST(Router, TiesGoToTheLowestIndex) {
  on_all_devices([](const Device& device) {
    const Problem problem{{6, 3, true}, HostArray({2, 6}, {1, 2, 2, 0, 2, 2, 5, 5, 5, 5, 5, 5}), {}, {}};
    const Routed routed = forward(device, problem);
    EXPECT_EQ(routed.expert.values, (std::vector<double>{1, 2, 4, 0, 1, 2}));
    for (const double w : routed.weight.values) EXPECT_NEAR(w, 1.0 / 3, 1e-6);
  });
}

TEST(Router, AllNegativeAndFarApartLogits) {
  on_all_devices([](const Device& device) {
    const Problem problem{
        {4, 2, true},
        HostArray({3, 4}, {-90, -50, -70, -51, -1e4, -2e4, -3e4, -9999, -3, -300, -200, -2}),
        {},
        {}};
    const Routed routed = forward(device, problem);
    EXPECT_EQ(routed.expert.values, (std::vector<double>{1, 3, 3, 0, 3, 0}));
    for (int64_t t = 0; t < 3; ++t) {
      EXPECT_NEAR(routed.weight[2 * t], 1 / (1 + std::exp(-1.0)), 1e-6);
      EXPECT_NEAR(routed.weight[2 * t] + routed.weight[2 * t + 1], 1, 1e-6);
    }
  });
}

TEST(Router, WeightsWithoutNormalisationAreTheProbabilities) {
  on_all_devices([](const Device& device) {
    const Problem problem{
        {3, 2, false}, HostArray({1, 3}, {std::log(1.0), std::log(2.0), std::log(5.0)}), {}, {}};
    const Routed routed = forward(device, problem);
    EXPECT_EQ(routed.expert.values, (std::vector<double>{2, 1}));
    EXPECT_NEAR(routed.weight[0], 5.0 / 8, 1e-6);
    EXPECT_NEAR(routed.weight[1], 2.0 / 8, 1e-6);
  });
}

TEST(Router, AllExpertsChosen) {
  on_all_devices([](const Device& device) {
    const Problem problem = random_problem(5, 8, 8, true);
    const Routed routed = forward(device, problem);
    for (int64_t t = 0; t < 5; ++t) {
      std::vector<double> row(routed.expert.values.begin() + t * 8, routed.expert.values.begin() + t * 8 + 8);
      std::sort(row.begin(), row.end());
      EXPECT_EQ(row, (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7}));
      double sum = 0;
      for (int64_t j = 0; j < 8; ++j) sum += routed.weight[t * 8 + j];
      EXPECT_NEAR(sum, 1, 1e-6);
    }
  });
}

TEST(Router, ForcedRows) {
  on_all_devices([](const Device& device) {
    Problem problem{{4, 2, true}, HostArray(Shape{6, 4}), {}, {}};
    for (int64_t t = 0; t < 6; ++t) {
      for (int64_t e = 0; e < 4; ++e) problem.logits[t * 4 + e] = static_cast<double>(e);
    }
    // valid, unset, half set, twice the same, out of range, valid and equal to the router's own in other
    // order
    problem.forced = Ints{0, 2, -1, -1, 0, -1, 1, 1, 0, 4, 2, 3};
    const Routed routed = forward(device, problem);
    EXPECT_EQ(routed.expert.values, (std::vector<double>{0, 2, 3, 2, 3, 2, 3, 2, 3, 2, 2, 3}));
    EXPECT_NEAR(routed.weight[0], 1 / (1 + std::exp(2.0)), 1e-6);
    EXPECT_NEAR(routed.weight[10], 1 / (1 + std::exp(1.0)), 1e-6);
  });
}

TEST(Router, ForcedExpertsFarBelowTheTopStillHaveWeights) {
  on_all_devices([](const Device& device) {
    Problem problem{{3, 2, true}, HostArray({1, 3}, {0, -500, -501}), {}, {}};
    problem.forced = Ints{1, 2};
    const Routed routed = forward(device, problem);
    EXPECT_NEAR(routed.weight[0], 1 / (1 + std::exp(-1.0)), 1e-6);
  });
}

TEST(Router, PaddingIsNotRoutedWhateverItHolds) {
  on_all_devices([](const Device& device) {
    Problem problem = random_problem(4, 5, 2, true);
    problem.segments = Ints{0, 3, 0, 4};
    problem.forced = Ints{1, 2, -1, -1, 0, 1, -1, -1};
    for (const int64_t t : {0, 2}) {
      for (int64_t e = 0; e < 5; ++e) problem.logits[t * 5 + e] = kNan;
    }
    const Routed routed = forward(device, problem);
    HostArray dweight = random_array({4, 2}, 3);
    for (const int64_t i : {0, 1, 4, 5}) {
      EXPECT_EQ(routed.expert[i], -1);
      EXPECT_EQ(routed.weight[i], 0);
      dweight[i] = kNan;
    }
    for (const int64_t i : {2, 3, 6, 7}) EXPECT_TRUE(routed.expert[i] >= 0 && routed.weight[i] > 0);
    for (const bool norm_topk : {true, false}) {
      problem.params.norm_topk = norm_topk;
      const HostArray dlogits = backward(device, problem, routed.expert, dweight);
      for (int64_t t = 0; t < 4; ++t) {
        for (int64_t e = 0; e < 5; ++e) {
          if (t % 2 == 0) {
            EXPECT_EQ(dlogits[t * 5 + e], 0);
          }
          EXPECT_TRUE(std::isfinite(dlogits[t * 5 + e]));
        }
      }
    }
  });
}

TEST(Router, NoTokens) {
  on_all_devices([](const Device& device) {
    const Problem problem = random_problem(0, 5, 2, true);
    const Routed routed = forward(device, problem);
    EXPECT_EQ(backward(device, problem, routed.expert, routed.weight).size(), 0);
  });
}

}  // namespace
}  // namespace lathe::test
