#include "lathe/kernels/gated_delta_rule.h"

#include <algorithm>
#include <cmath>

#include "kernels/delta_rule_case.h"

namespace lathe::test {
namespace {

const std::vector<std::string> kInputs{"q", "k", "v", "beta", "g", "initial_state"};

HostArray& input_of(DeltaCase& c, size_t i) {
  HostArray* all[] = {&c.q, &c.k, &c.v, &c.beta, &c.g, &c.initial_state};
  return *all[i];
}

void expect_all_near(const Named& actual, const Named& expected, double tolerance, const std::string& what) {
  for (const auto& [name, values] : expected)
    expect_near(actual.at(name), values, tolerance, what + " " + name);
}

// Backward of ref in f64 against finite differences of its forward.
void difference(DeltaCase base) {
  const Device device = make_ref_device();
  const size_t count = base.initial_state.shape.rank() == 0 ? 5 : 6;
  const auto with = [&](const std::vector<HostArray>& inputs) {
    DeltaCase c = base;
    for (size_t i = 0; i < inputs.size(); ++i) input_of(c, i) = inputs[i];
    return c;
  };
  std::vector<HostArray> inputs;
  for (size_t i = 0; i < count; ++i) inputs.push_back(input_of(base, i));
  const bool final_too = base.d_final_state.shape.rank() != 0;
  const Forward forward = [&](const std::vector<HostArray>& x) {
    const Named out = run_delta_forward(device, with(x));
    std::vector<HostArray> outputs{out.at("o")};
    if (final_too) outputs.push_back(out.at("final_state"));
    return outputs;
  };
  const Backward backward = [&](const std::vector<HostArray>& x, const std::vector<HostArray>& cotangents) {
    DeltaCase c = with(x);
    c.d_o = cotangents[0];
    if (final_too) c.d_final_state = cotangents[1];
    const Named out = run_delta(device, c);
    std::vector<HostArray> gradients{out.at("dq"), out.at("dk"), out.at("dv"), out.at("dbeta"), out.at("dg")};
    if (count == 6) gradients.push_back(out.at("d_initial_state"));
    return gradients;
  };
  check_gradients(kInputs, inputs, forward, backward);
}

TEST(GatedDeltaRule, BackwardIsTheDerivativeOfForward) {
  for (const int64_t repeat : {1, 2, 3}) {
    const GatedDeltaRuleParams p{.rows = 1,
                                 .tokens = 22,
                                 .key_heads = 2,
                                 .value_heads = 2 * repeat,
                                 .key_dim = 3,
                                 .value_dim = 4,
                                 .chunk = 8};
    for (const SegmentLayout& layout : segment_layouts(p.tokens)) {
      if (layout.name == "padding") continue;
      for (const bool carried : {false, true}) {
        SCOPED_TRACE(fmt::format("repeat {} {} carried {}", repeat, layout.name, carried));
        DeltaCase c = random_delta_case(p, layout.segments, 11 + static_cast<uint64_t>(repeat));
        if (carried) carry_state(c, 77);
        if (!carried) c.d_final_state = HostArray();
        difference(c);
      }
    }
  }
}

TEST(GatedDeltaRule, CpuIsTheReference) {
  // Relative error per tensor: f32 rounding is 6e-8, grown by sums over a chunk and by the inverse.
  constexpr double kTolerance = 1e-5;
  const Device ref = make_ref_device();
  struct Size {
    int64_t key_heads, value_heads, key_dim, value_dim;
  };
  const Size sizes[] = {{1, 1, 1, 1}, {2, 6, 5, 7}, {1, 2, 33, 19}};
  for (const Isa isa : isas_at_hand()) {
    const Device one = make_cpu_device(isa, 1);
    const Device two = make_cpu_device(isa, 2);
    for (const int64_t tokens : {1, 2, 7, 63, 64, 65, 127, 130}) {
      const std::vector<SegmentLayout> layouts = segment_layouts(tokens);
      for (size_t i = 0; i < layouts.size(); ++i) {
        // Two rows of different layouts; the second one starts with its own carried segment.
        std::vector<int32_t> segments = layouts[i].segments;
        const std::vector<int32_t>& second = layouts[(i + 1) % layouts.size()].segments;
        segments.insert(segments.end(), second.begin(), second.end());
        for (const int64_t chunk : {16, 64, 128}) {
          const Size& s = sizes[(i + static_cast<size_t>(chunk / 16 + tokens)) % 3];
          const GatedDeltaRuleParams p{2, tokens, s.key_heads, s.value_heads, s.key_dim, s.value_dim, chunk};
          DeltaCase c = random_delta_case(p, segments, 100 * i + static_cast<uint64_t>(tokens));
          if (i % 2 == 0) carry_state(c, 5);
          const std::string what = fmt::format("{} tokens {} {} chunk {} size {}", isa_name(isa), tokens,
                                               layouts[i].name, chunk, s.key_dim);
          const Named fast = run_delta(one, c);
          expect_all_near(fast, run_delta(ref, c), kTolerance, what);
          for (const auto& [name, values] : run_delta(two, c))
            expect_same(values, fast.at(name), what + name);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(GatedDeltaRule, RealDimensionsFitAndAgree) {
  const Device ref = make_ref_device();
  for (const int64_t chunk : {64, 128}) {
    const GatedDeltaRuleParams p{1, 150, 1, 2, 256, 256, chunk};
    std::vector<int32_t> segments(150, 3);
    std::fill(segments.begin(), segments.begin() + 40, 2);
    const DeltaCase c = random_delta_case(p, segments, 9, {.slowest = -5, .fastest = -1});
    const Named expected = run_delta(ref, c);
    for (const Isa isa : isas_at_hand()) {
      expect_all_near(run_delta(make_cpu_device(isa), c), expected, 1e-5, fmt::format("chunk {}", chunk));
    }
  }
}

// The case on every device; the result of ref in f64 is returned.
Named run_everywhere(const DeltaCase& c, double tolerance, const std::string& what) {
  const Named expected = run_delta(make_ref_device(), c);
  expect_all_near(run_delta(make_ref_device(DType::kF32), c), expected, 10 * tolerance, what + " ref f32");
  for (const Isa isa : isas_at_hand()) {
    expect_all_near(run_delta(make_cpu_device(isa), c), expected, tolerance, what + " " + isa_name(isa));
  }
  return expected;
}

TEST(GatedDeltaRule, SlowDecayAndAlikeKeys) {
  const GatedDeltaRuleParams p{1, 260, 1, 2, 24, 20, 64};
  const std::vector<int32_t> segments(260, 1);
  // Keys 0.99 alike, beta near 1, and a state that forgets over hundreds of tokens.
  run_everywhere(random_delta_case(p, segments, 4, {-7, -5, 0.99, 4}), 2e-5, "alike");
  // The same key at every token: what is written is overwritten at once, so dg is a small rest of large terms.
  run_everywhere(random_delta_case(p, segments, 5, {-7, -5, 1.0, 2}), 1e-4, "identical");
}

TEST(GatedDeltaRule, ExtremeDecayIsFinite) {
  const GatedDeltaRuleParams p{1, 130, 1, 2, 6, 5, 64};
  for (const double g : {-80.0, -50.0, -2000.0, 0.0}) {
    DeltaCase c = random_delta_case(p, std::vector<int32_t>(130, 1), 6);
    for (double& x : c.g.values) x = g;
    for (int64_t i = 0; i < 5 * p.key_dim; ++i) c.k[i] = 0;  // zero keys at the start
    carry_state(c, 8);
    run_everywhere(c, 1e-5, fmt::format("g {}", g));
    // Strong decay here and there among slow decay: small exponents beside large sums.
    DeltaCase mixed = random_delta_case(p, std::vector<int32_t>(130, 1), 7, {-6, -4});
    for (int64_t t = 0; t < 130; t += 5) mixed.g[2 * t] = g;
    run_everywhere(mixed, 1e-5, fmt::format("now and then g {}", g));
  }
}

TEST(GatedDeltaRule, AStateOfAnotherSegmentIsNotRead) {
  const GatedDeltaRuleParams p{2, 40, 1, 2, 5, 3, 16};
  std::vector<int32_t> segments(80, 2);
  std::fill(segments.begin() + 40, segments.end(), 0);  // the second row is padding
  DeltaCase c = random_delta_case(p, segments, 12);
  DeltaCase plain = c;
  carry_state(c, 3);
  c.initial_segment = {1, 7};
  for (int64_t i = 0; i < c.initial_state.size() / 2; ++i) c.initial_state[i] = std::nan("");
  const auto check = [&](const Device& device) {
    Named expected = run_delta(device, plain);
    Named actual = run_delta(device, c);
    // A row of padding hands its state on, and the state's gradient back.
    expect_same(slice_rows(actual.at("final_state"), 1, 2), slice_rows(c.initial_state, 1, 2),
                "state through padding");
    expect_same(slice_rows(actual.at("d_initial_state"), 1, 2), slice_rows(c.d_final_state, 1, 2),
                "gradient");
    for (Named* out : {&expected, &actual}) {
      for (const char* name : {"final_state", "d_initial_state"})
        out->at(name) = slice_rows(out->at(name), 0, 1);
      HostArray& states = out->at("chunk_states");
      states = slice_rows(states, 0, states.size() / 2);
    }
    for (const auto& [name, values] : expected) expect_same(actual.at(name), values, name);
  };
  check(make_ref_device());
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa));
}

// A segment's own tokens of every per-token result.
Named tokens_of(const Named& out, int64_t begin, int64_t end) {
  Named part;
  for (const char* name : {"o", "dq", "dk", "dv", "dbeta", "dg"}) {
    part[name] = slice_rows(out.at(name), begin, end);
  }
  return part;
}

TEST(GatedDeltaRule, NothingLeaksBetweenPackedSegments) {
  // Decay exp(-0.05): a state that stayed from the segment before would be seen.
  const GatedDeltaRuleParams p{1, 37 + 27 + 37 + 20 + 37 + 34 + 37, 1, 2, 6, 5, 64};
  std::vector<int32_t> segments;
  const std::vector<int64_t> lengths{37, 27, 37, 20, 37, 34, 37};
  for (size_t s = 0; s < lengths.size(); ++s) {
    segments.insert(segments.end(), static_cast<size_t>(lengths[s]), static_cast<int32_t>(s + 1));
  }
  DeltaCase packed = random_delta_case(p, segments, 21, {-3.2, -2.8});
  packed.d_final_state = HostArray();
  // Every other segment is the same document: first, at a chunk's start, across two chunks, and last.
  const std::vector<int64_t> begins{0, 64, 121, 192};
  for (HostArray DeltaCase::*array :
       {&DeltaCase::q, &DeltaCase::k, &DeltaCase::v, &DeltaCase::beta, &DeltaCase::g, &DeltaCase::d_o}) {
    HostArray& values = packed.*array;
    const int64_t width = values.size() / p.tokens;
    for (const int64_t begin : begins) {
      std::copy_n(values.values.begin(), 37 * width, values.values.begin() + begin * width);
    }
  }
  const DeltaCase alone = slice_tokens(packed, 0, 37);
  const auto check = [&](const Device& device, double tolerance) {
    const Named together = run_delta(device, packed);
    const Named expected = tokens_of(run_delta(device, alone), 0, 37);
    for (const int64_t begin : begins) {
      expect_all_near(tokens_of(together, begin, begin + 37), expected, tolerance,
                      fmt::format("at {}", begin));
    }
  };
  check(make_ref_device(), 0);
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa), 2e-6);
}

TEST(GatedDeltaRule, ARowInTwoCallsIsTheRowInOne) {
  const GatedDeltaRuleParams p{1, 101, 1, 3, 5, 6, 32};
  std::vector<int32_t> segments(101, 1);
  for (size_t t = 30; t < 101; ++t) segments[t] = 2;
  for (size_t t = 60; t < 70; ++t) segments[t] = 0;  // padding inside a segment is passed over
  for (const size_t t : {95U, 96U, 97U, 98U, 99U, 100U}) segments[t] = 3;
  const DeltaCase whole = random_delta_case(p, segments, 31, {-4, -2});
  const auto check = [&](const Device& device, int64_t at, double tolerance) {
    const std::string what = fmt::format("cut at {}", at);
    const Named expected = run_delta(device, whole);
    DeltaCase first = slice_tokens(whole, 0, at);
    DeltaCase second = slice_tokens(whole, at, p.tokens);
    second.initial_state = run_delta_forward(device, first).at("final_state");
    for (const int32_t s : first.segments) {
      if (s != 0) second.initial_segment = {s};
    }
    second.d_final_state = whole.d_final_state;
    const Named after = run_delta(device, second);
    first.d_final_state = after.at("d_initial_state");
    const Named before = run_delta(device, first);
    expect_all_near(tokens_of(before, 0, at), tokens_of(expected, 0, at), tolerance, what + " first part");
    expect_all_near(tokens_of(after, 0, p.tokens - at), tokens_of(expected, at, p.tokens), tolerance,
                    what + " second part");
    expect_near(after.at("final_state"), expected.at("final_state"), tolerance, what + " final state");
  };
  for (const int64_t at : {1, 17, 30, 31, 45, 63, 65, 70, 96}) {
    check(make_ref_device(), at, 0);
    for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa), at, 2e-6);
  }
}

}  // namespace
}  // namespace lathe::test
