#include "lathe/kernels/gated_delta_rule_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/delta_rule_case.h"
#include "kernels/parity.h"

namespace lathe::test {
namespace {

struct Summary {
  HostArray transition, state, d_state;
};

Summary run_summary(const Device& device, const DeltaCase& c, const std::vector<int32_t>& entering,
                    bool want_transition = true) {
  const GatedDeltaRuleParams& p = c.params;
  const Tensor q = to_device(device, c.q);
  const Tensor k = to_device(device, c.k);
  const Tensor v = to_device(device, c.v);
  const Tensor beta = to_device(device, c.beta);
  const Tensor g = to_device(device, c.g);
  const Tensor d_o = to_device(device, c.d_o);
  const Tensor segments =
      to_device(device, integer_array({static_cast<int64_t>(c.segments.size())}, c.segments), DType::kI32);
  const Tensor before = to_device(device, integer_array({p.rows}, entering), DType::kI32);
  Tensor transition;
  if (want_transition) transition = poisoned(device, {p.rows, p.value_heads, p.key_dim, p.key_dim});
  const Tensor state = poisoned(device, {p.rows, p.value_heads, p.key_dim, p.value_dim});
  const Tensor d_state = poisoned(device, {p.rows, p.value_heads, p.key_dim, p.value_dim});
  device.kernels.gated_delta_rule_summary(*device.queue, p, k, v, beta, g, segments, before, transition,
                                          state);
  device.kernels.gated_delta_rule_adjoint_summary(*device.queue, p, d_o, q, k, beta, g, segments, before,
                                                  d_state);
  Summary out{{}, to_host(device, state), to_host(device, d_state)};
  if (want_transition) out.transition = to_host(device, transition);
  return out;
}

// transition (or its transpose) x + add, per row and value head.
HostArray apply(const GatedDeltaRuleParams& p, const HostArray& transition, bool transpose,
                const HostArray& x, const HostArray& add) {
  HostArray out = add;
  for (int64_t head = 0; head < p.rows * p.value_heads; ++head) {
    for (int64_t i = 0; i < p.key_dim; ++i) {
      for (int64_t l = 0; l < p.key_dim; ++l) {
        const double m =
            transition[(head * p.key_dim + (transpose ? l : i)) * p.key_dim + (transpose ? i : l)];
        for (int64_t j = 0; j < p.value_dim; ++j) {
          out[(head * p.key_dim + i) * p.value_dim + j] += m * x[(head * p.key_dim + l) * p.value_dim + j];
        }
      }
    }
  }
  return out;
}

// Segments of two rows: a layout and the next one.
std::vector<int32_t> two_rows(const std::vector<SegmentLayout>& layouts, size_t i) {
  std::vector<int32_t> segments = layouts[i].segments;
  const std::vector<int32_t>& second = layouts[(i + 1) % layouts.size()].segments;
  segments.insert(segments.end(), second.begin(), second.end());
  return segments;
}

TEST(GatedDeltaRuleSummary, IsWhatTheRuleDoesToTheState) {
  const Device device = make_ref_device();
  for (const int64_t tokens : {1, 2, 13, 40}) {
    const std::vector<SegmentLayout> layouts = segment_layouts(tokens);
    for (size_t i = 0; i < layouts.size(); ++i) {
      const GatedDeltaRuleParams p{2, tokens, 1, 3, 5, 4, 8};
      DeltaCase c = random_delta_case(p, two_rows(layouts, i), 7 * i + static_cast<uint64_t>(tokens));
      carry_state(c, 5);
      for (const bool continues : {true, false}) {
        if (!continues) {
          for (int32_t& segment : c.initial_segment) segment += 100;
        }
        const Summary summary = run_summary(device, c, c.initial_segment);
        const Named rule = run_delta(device, c);
        const std::string what = fmt::format("{} of {}, {}", layouts[i].name, tokens, continues);
        expect_near(apply(p, summary.transition, false, c.initial_state, summary.state),
                    rule.at("final_state"), 1e-12, what + " state");
        expect_near(apply(p, summary.transition, true, c.d_final_state, summary.d_state),
                    rule.at("d_initial_state"), 1e-12, what + " gradient");
        if (HasFailure()) return;
      }
    }
  }
}

TEST(GatedDeltaRuleSummary, FastAndReferenceAgree) {
  constexpr double kTolerance = 5e-6;
  const Device ref = make_ref_device();
  for (const Isa isa : isas_at_hand()) {
    const Device one = make_cpu_device(isa, 1);
    const Device two = make_cpu_device(isa, 2);
    for (const int64_t tokens : {1, 7, 63, 64, 65, 130}) {
      const std::vector<SegmentLayout> layouts = segment_layouts(tokens);
      for (size_t i = 0; i < layouts.size(); ++i) {
        for (const int64_t chunk : {16, 64}) {
          const GatedDeltaRuleParams p{2, tokens, 2, 4, 9, i % 2 == 0 ? 17 : 6, chunk};
          // Slow enough that transitions do not vanish beside the identity they start from.
          DeltaCase c = random_delta_case(p, two_rows(layouts, i), 100 * i + static_cast<uint64_t>(tokens),
                                          {.slowest = -6, .fastest = -3});
          carry_state(c, 5);
          if (i % 3 == 2) c.initial_segment[1] += 50;
          const std::string what =
              fmt::format("{} {} of {} chunk {} ", isa_name(isa), layouts[i].name, tokens, chunk);
          const Summary expected = run_summary(ref, c, c.initial_segment);
          const Summary fast = run_summary(one, c, c.initial_segment);
          const Summary again = run_summary(two, c, c.initial_segment);
          const Summary without = run_summary(one, c, c.initial_segment, false);
          expect_near(fast.transition, expected.transition, kTolerance, what + "transition");
          expect_near(fast.state, expected.state, kTolerance, what + "state");
          expect_near(fast.d_state, expected.d_state, kTolerance, what + "d_state");
          expect_near(without.state, expected.state, kTolerance, what + "state alone");
          expect_same(again.transition, fast.transition, what + "transition, two threads");
          expect_same(again.state, fast.state, what + "state, two threads");
          expect_same(again.d_state, fast.d_state, what + "d_state, two threads");
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(GatedDeltaRuleSummary, LongSlowStatesAndAlikeKeys) {
  const GatedDeltaRuleParams p{1, 260, 1, 2, 24, 20, 64};
  for (const double alike : {0.0, 0.99}) {
    const DeltaCase c = random_delta_case(p, std::vector<int32_t>(260, 1), 4, {-7, -5, alike, 4});
    const Summary expected = run_summary(make_ref_device(), c, {1});
    for (const Isa isa : isas_at_hand()) {
      const Summary fast = run_summary(make_cpu_device(isa), c, {1});
      expect_near(fast.transition, expected.transition, 2e-5, "transition");
      expect_near(fast.state, expected.state, 2e-5, "state");
      expect_near(fast.d_state, expected.d_state, 2e-5, "d_state");
    }
  }
}

TEST(GatedDeltaRuleSummary, AVanishedTransitionIsZero) {
  const GatedDeltaRuleParams p{1, 300, 1, 2, 24, 20, 64};
  DeltaCase c = random_delta_case(p, std::vector<int32_t>(300, 1), 4);
  for (int64_t i = 0; i < c.g.size(); ++i) c.g[i] = i % 2 == 0 ? -0.22 : -0.002;  // of one head alone
  const Summary expected = run_summary(make_ref_device(), c, {1});
  // Far below what f32 resolves beside anything, but not below what it can hold.
  EXPECT_LT(std::abs(expected.transition[0]), 1e-30);
  EXPECT_GT(std::abs(expected.transition[0]), 1e-37);
  for (const Isa isa : isas_at_hand()) {
    const Summary fast = run_summary(make_cpu_device(isa), c, {1});
    expect_near(fast.transition, expected.transition, 5e-6, "transition");
    expect_near(fast.state, expected.state, 5e-6, "state");
    const int64_t size = p.key_dim * p.key_dim;
    for (int64_t i = 0; i < size; ++i) EXPECT_EQ(fast.transition[i], 0);
    EXPECT_NE(fast.transition[size], 0);
  }
}

TEST(GatedDeltaRuleSummary, OtherSegmentsAreNotRead) {
  // Segments 1 (goes on from before), 2, 3 (goes on behind): the middle one counts in nothing, the last one not in the
  // adjoint, the first one not in the state.
  const GatedDeltaRuleParams p{1, 60, 1, 2, 6, 5, 16};
  std::vector<int32_t> segments(60, 2);
  std::fill(segments.begin(), segments.begin() + 21, 1);
  std::fill(segments.begin() + 37, segments.end(), 3);
  const DeltaCase whole = random_delta_case(p, segments, 8);
  const auto spoil = [&](int64_t begin, int64_t end) {
    DeltaCase c = whole;
    for (HostArray* array : {&c.q, &c.k, &c.v, &c.beta, &c.g, &c.d_o}) {
      const int64_t width = array->size() / p.tokens;
      std::fill(array->values.begin() + begin * width, array->values.begin() + end * width,
                std::numeric_limits<double>::quiet_NaN());
    }
    return c;
  };
  const auto check = [&](const Device& device) {
    const Summary expected = run_summary(device, whole, {1});
    const Summary forward = run_summary(device, spoil(0, 37), {1});
    expect_same(forward.state, expected.state, "state");
    expect_same(forward.transition, HostArray(expected.transition.shape), "transition");
    expect_same(run_summary(device, spoil(21, 60), {1}).d_state, expected.d_state, "d_state");
    EXPECT_GT(std::abs(expected.d_state[0]), 0);
    EXPECT_GT(std::abs(expected.state[0]), 0);
  };
  check(make_ref_device());
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa));
}

TEST(GatedDeltaRuleSummary, PaddingHandsTheStateOn) {
  const GatedDeltaRuleParams p{1, 33, 1, 2, 4, 3, 16};
  const DeltaCase c = random_delta_case(p, std::vector<int32_t>(33, 0), 8);
  const auto check = [&](const Device& device) {
    const Summary summary = run_summary(device, c, {4});
    HostArray identity(summary.transition.shape);
    for (int64_t i = 0; i < identity.size(); ++i) identity[i] = i % 16 % 5 == 0 ? 1 : 0;
    expect_same(summary.transition, identity, "transition");
    expect_same(summary.state, HostArray(summary.state.shape), "state");
    expect_same(summary.d_state, HostArray(summary.d_state.shape), "d_state");
  };
  check(make_ref_device());
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa));
}

// The state before and the gradient behind every one of `cuts` shards of a row, from their summaries.
TEST(GatedDeltaRuleFold, ShardsComposeToTheRow) {
  const GatedDeltaRuleParams p{1, 96, 1, 3, 5, 6, 16};
  std::vector<int32_t> segments(96, 1);
  std::fill(segments.begin() + 47, segments.begin() + 93,
            2);  // starts on the last token of the second shard of four
  std::fill(segments.begin() + 60, segments.begin() + 75,
            0);  // all of the last but one of eight is padding ...
  std::fill(segments.begin() + 75, segments.end(), 0);
  std::fill(segments.begin() + 84, segments.end(), 3);
  const DeltaCase whole = random_delta_case(p, segments, 31, {-4, -2});
  const auto run = [&](const Device& device, int64_t shards, double tolerance) {
    const int64_t length = p.tokens / shards;
    std::vector<DeltaCase> parts;
    std::vector<Summary> summaries;
    for (int64_t r = 0; r < shards; ++r) {
      parts.push_back(slice_tokens(whole, r * length, (r + 1) * length));
      int32_t entering = 0;
      for (int64_t t = 0; t < r * length; ++t) {
        if (segments[static_cast<size_t>(t)] != 0) entering = segments[static_cast<size_t>(t)];
      }
      parts.back().initial_segment = {entering};
      summaries.push_back(run_summary(device, parts.back(), {entering}));
    }
    const auto stack = [&](HostArray Summary::*member, int64_t begin, int64_t end) {
      const HostArray& first = summaries[0].*member;
      HostArray out(Shape{end - begin, p.rows * p.value_heads, p.key_dim, first.shape[3]});
      for (int64_t r = begin; r < end; ++r) {
        const HostArray& from = summaries[static_cast<size_t>(r)].*member;
        std::copy(from.values.begin(), from.values.end(), out.values.begin() + (r - begin) * from.size());
      }
      return out;
    };
    const auto folded = [&](int64_t begin, int64_t end, bool backward) {
      HostArray transitions = stack(&Summary::transition, begin, end);
      // That of the shard which comes first in the fold is not read.
      const int64_t size = p.value_heads * p.key_dim * p.key_dim;
      const int64_t skipped = backward ? end - begin - 1 : 0;
      if (begin < end) {
        std::fill_n(transitions.values.begin() + skipped * size, size,
                    std::numeric_limits<double>::quiet_NaN());
      }
      const Tensor m = to_device(device, transitions);
      const Tensor b = to_device(device, stack(backward ? &Summary::d_state : &Summary::state, begin, end));
      const Tensor out = poisoned(device, {p.rows, p.value_heads, p.key_dim, p.value_dim});
      device.kernels.gated_delta_rule_fold(
          *device.queue, {p.rows, p.value_heads, p.key_dim, p.value_dim, end - begin, backward}, m, b, out);
      return to_host(device, out);
    };
    DeltaCase row = whole;
    row.d_final_state = HostArray();
    const Named expected = run_delta(device, row);
    for (int64_t r = 0; r < shards; ++r) {
      DeltaCase& part = parts[static_cast<size_t>(r)];
      part.initial_state = folded(0, r, false);
      part.d_final_state = folded(r + 1, shards, true);
      const Named actual = run_delta(device, part);
      for (const char* name : {"o", "dq", "dk", "dv", "dbeta", "dg"}) {
        expect_near(actual.at(name), slice_rows(expected.at(name), r * length, (r + 1) * length), tolerance,
                    fmt::format("{} of shard {} of {}", name, r, shards));
      }
    }
  };
  for (const int64_t shards : {1, 2, 3, 4, 8}) {
    run(make_ref_device(), shards, 1e-12);
    for (const Isa isa : isas_at_hand()) run(make_cpu_device(isa), shards, 5e-6);
  }
}

TEST(GatedDeltaRuleFold, NothingPassesATransitionOfZeros) {
  const auto check = [&](const Device& device, bool backward) {
    const double inf = std::numeric_limits<double>::infinity();
    HostArray states(Shape{2, 1, 2, 1}, {1, 2, 3, 4});
    for (int64_t i = 0; i < 2; ++i) states[backward ? 2 + i : i] = inf;
    const Tensor m = to_device(device, HostArray(Shape{2, 1, 2, 2}));
    const Tensor b = to_device(device, states);
    const Tensor out = poisoned(device, {1, 1, 2, 1});
    device.kernels.gated_delta_rule_fold(*device.queue, {1, 1, 2, 1, 2, backward}, m, b, out);
    const HostArray expected(Shape{1, 1, 2, 1}, {backward ? 1.0 : 3.0, backward ? 2.0 : 4.0});
    expect_same(to_host(device, out), expected, "state behind a segment's start");
  };
  for (const bool backward : {false, true}) {
    check(make_ref_device(), backward);
    for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa), backward);
  }
}

}  // namespace
}  // namespace lathe::test
