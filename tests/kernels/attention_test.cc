#include "lathe/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Ints = std::vector<int32_t>;

struct Problem {
  AttentionParams params;
  HostArray q, k, v;
  Ints q_segments, kv_segments;
};

struct Outputs {
  HostArray o, lse;
};
struct Gradients {
  HostArray dq, dk, dv;
};

struct Placed {
  Tensor q, k, v, q_segments, kv_segments;

  Placed(const Device& device, const Problem& p)
      : q(to_device(device, p.q)),
        k(to_device(device, p.k)),
        v(to_device(device, p.v)),
        q_segments(to_device(device, integer_array({p.q.shape[0]}, p.q_segments), DType::kI32)),
        kv_segments(to_device(device, integer_array({p.k.shape[0]}, p.kv_segments), DType::kI32)) {}
};

Outputs forward(const Device& device, const Problem& p) {
  const Placed in(device, p);
  const Tensor o = poisoned(device, p.q.shape);
  const Tensor lse = poisoned(device, {p.q.shape[0], p.params.q_heads});
  device.kernels.attention_forward(*device.queue, p.params, in.q, in.k, in.v, in.q_segments, in.kv_segments,
                                   o, lse);
  return {to_host(device, o), to_host(device, lse)};
}

Gradients backward(const Device& device, const Problem& p, const Outputs& out, const HostArray& d_o) {
  const Placed in(device, p);
  const Tensor dq = poisoned(device, p.q.shape);
  const Tensor dk = poisoned(device, p.k.shape);
  const Tensor dv = poisoned(device, p.v.shape);
  const Tensor scratch = poisoned(device, {attention_backward_scratch(p.params)});
  device.kernels.attention_backward(*device.queue, p.params, to_device(device, d_o), in.q, in.k, in.v,
                                    in.q_segments, in.kv_segments, to_device(device, out.o),
                                    to_device(device, out.lse), dq, dk, dv, scratch);
  return {to_host(device, dq), to_host(device, dk), to_host(device, dv)};
}

struct Heads {
  int64_t q = 4;
  int64_t kv = 2;
  int64_t dim = 5;
};

// Rows with the same segments; every row has q_offset keys before its first query.
Problem random_problem(int64_t rows, const Ints& row_segments, int64_t q_offset, const Heads& heads) {
  const auto kv_tokens = static_cast<int64_t>(row_segments.size());
  const int64_t q_tokens = kv_tokens - q_offset;
  Problem p{{rows, q_tokens, kv_tokens, q_offset, heads.q, heads.kv, heads.dim, 1 / std::sqrt(heads.dim)},
            random_array({rows * q_tokens, heads.q, heads.dim}, 1, 1.5),
            random_array({rows * kv_tokens, heads.kv, heads.dim}, 2, 1.5),
            random_array({rows * kv_tokens, heads.kv, heads.dim}, 3),
            {},
            {}};
  for (int64_t r = 0; r < rows; ++r) {
    p.q_segments.insert(p.q_segments.end(), row_segments.begin() + q_offset, row_segments.end());
    p.kv_segments.insert(p.kv_segments.end(), row_segments.begin(), row_segments.end());
  }
  return p;
}

template <typename Fn>
void on_all_devices(const Fn& fn) {
  fn(make_ref_device(DType::kF64));
  for (const Isa isa : isas_at_hand()) fn(make_cpu_device(isa));
}

HostArray tokens_of(const HostArray& a, int64_t begin, int64_t count) {
  const int64_t width = a.size() / a.shape[0];
  Shape shape{count};
  for (int i = 1; i < a.shape.rank(); ++i) shape.append(a.shape[i]);
  return {shape, {a.values.begin() + begin * width, a.values.begin() + (begin + count) * width}};
}

void set_tokens(HostArray& to, int64_t begin, const HostArray& from) {
  std::copy(from.values.begin(), from.values.end(), to.values.begin() + begin * (to.size() / to.shape[0]));
}

void fill_token(HostArray& a, int64_t token, double value) {
  const int64_t width = a.size() / a.shape[0];
  std::fill_n(a.values.begin() + token * width, width, value);
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  const Device ref = make_ref_device();
  for (const SegmentLayout& layout : segment_layouts(11)) {
    if (layout.name == "padding") continue;  // all gradients are zero
    for (const int64_t q_offset : {0, 4}) {
      SCOPED_TRACE(layout.name + " offset " + std::to_string(q_offset));
      const Problem problem = random_problem(2, layout.segments, q_offset, {4, 2, 3});
      const auto with = [&](const std::vector<HostArray>& in) {
        Problem moved = problem;
        moved.q = in[0];
        moved.k = in[1];
        moved.v = in[2];
        return moved;
      };
      check_gradients(
          {"q", "k", "v"}, {problem.q, problem.k, problem.v},
          [&](const auto& in) { return std::vector{forward(ref, with(in)).o}; },
          [&](const auto& in, const auto& cotangents) {
            const Problem p = with(in);
            const Gradients g = backward(ref, p, forward(ref, p), cotangents[0]);
            return std::vector{g.dq, g.dk, g.dv};
          });
    }
  }
}

TEST(Attention, TwoTokensByHand) {
  on_all_devices([](const Device& device) {
    Problem p = random_problem(1, {1, 1, 2}, 0, {1, 1, 1});
    p.params.scale = 0.5;
    p.q = HostArray({3, 1, 1}, {1, 2, 3});
    p.k = HostArray({3, 1, 1}, {1, std::log(3.0), 5});
    p.v = HostArray({3, 1, 1}, {10, 20, 30});
    const Outputs out = forward(device, p);
    const double weight = 3 / (std::exp(1.0) + 3);  // exp(0.5 * 2 * log 3) against exp(0.5 * 2 * 1)
    EXPECT_NEAR(out.o[0], 10, 1e-5);
    EXPECT_NEAR(out.o[1], 10 + 10 * weight, 1e-5);
    EXPECT_NEAR(out.o[2], 30, 1e-5);
    EXPECT_NEAR(out.lse[1], std::log(std::exp(1.0) + 3), 1e-6);
    EXPECT_NEAR(out.lse[2], 7.5, 1e-6);
  });
}

// dq and dk are differences that cancel: exactly, where every query sees one key. `size` gives the scale then.
void expect_near_difference(const HostArray& actual, const HostArray& expected, const HostArray& size,
                            const std::string& what) {
  const auto largest = [](const HostArray& a) {
    double out = 0;
    for (const double x : a.values) out = std::max(out, std::abs(x));
    return out;
  };
  if (largest(expected) > 1e-9 * largest(size)) {
    expect_near(actual, expected, 5e-6, what);
  } else {
    EXPECT_LE(largest(actual), 1e-6 * largest(size)) << what;
  }
}

void expect_parity(const Problem& p, const std::string& what) {
  const Device ref = make_ref_device();
  const HostArray d_o = random_array(p.q.shape, 4);
  const Outputs want = forward(ref, p);
  const Gradients want_gradients = backward(ref, p, want, d_o);
  for (const Isa isa : isas_at_hand()) {
    SCOPED_TRACE(what + " " + isa_name(isa));
    const Device one = make_cpu_device(isa, 1);
    const Device two = make_cpu_device(isa, 2);
    const Outputs got = forward(two, p);
    const Outputs again = forward(one, p);
    expect_near(got.o, want.o, 3e-6, "o");
    expect_near(got.lse, want.lse, 2e-6, "lse");
    expect_same(again.o, got.o, "o with 1 and 2 threads");
    expect_same(again.lse, got.lse, "lse with 1 and 2 threads");
    const Gradients g = backward(two, p, got, d_o);
    const Gradients g_again = backward(one, p, got, d_o);
    expect_near_difference(g.dq, want_gradients.dq, want_gradients.dv, "dq");
    expect_near_difference(g.dk, want_gradients.dk, want_gradients.dv, "dk");
    expect_near(g.dv, want_gradients.dv, 5e-6, "dv");
    expect_same(g_again.dq, g.dq, "dq with 1 and 2 threads");
    expect_same(g_again.dk, g.dk, "dk with 1 and 2 threads");
    expect_same(g_again.dv, g.dv, "dv with 1 and 2 threads");
  }
}

TEST(Attention, FastPathMatchesReference) {
  for (const int64_t tokens : {1, 2, 63, 64, 65, 150}) {
    for (const SegmentLayout& layout : segment_layouts(tokens)) {
      for (const int64_t q_offset : {int64_t{0}, tokens / 3, tokens - 1}) {
        if (q_offset == tokens - 1 && tokens > 65) continue;
        expect_parity(random_problem(2, layout.segments, q_offset, {4, 2, 5}),
                      layout.name + " of " + std::to_string(tokens) + ", offset " + std::to_string(q_offset));
      }
    }
  }
}

TEST(Attention, HeadsAndWidths) {
  const Ints segments = segment_layouts(90)[2].segments;
  for (const Heads heads : {Heads{1, 1, 1}, Heads{6, 2, 16}, Heads{3, 3, 64}, Heads{4, 1, 100},
                            Heads{2, 1, 256}, Heads{1, 1, 512}}) {
    expect_parity(
        random_problem(1, segments, 0, heads),
        std::to_string(heads.q) + "/" + std::to_string(heads.kv) + " x " + std::to_string(heads.dim));
  }
}

TEST(Attention, LargeScores) {
  Problem p = random_problem(1, Ints(130, 1), 0, {2, 1, 8});
  for (double& x : p.k.values) x *= 40;  // scores of hundreds: exp of them overflows
  on_all_devices([&](const Device& device) {
    const Outputs out = forward(device, p);
    for (const double x : out.o.values) ASSERT_TRUE(std::isfinite(x));
    const Gradients g = backward(device, p, out, random_array(p.q.shape, 4));
    for (const double x : g.dk.values) ASSERT_TRUE(std::isfinite(x));
  });
}

// More keys than the queries reach, as with gathered keys of a split row.
TEST(Attention, KeysBeyondTheLastQueryAreNotSeen) {
  Problem p = random_problem(1, Ints(200, 1), 0, {2, 1, 4});
  p.params.q_tokens = 70;
  p.params.q_offset = 50;
  p.q = tokens_of(p.q, 50, 70);
  p.q_segments.resize(70);
  expect_parity(p, "window");
  on_all_devices([&](const Device& device) {
    const Gradients g = backward(device, p, forward(device, p), random_array(p.q.shape, 4));
    for (int64_t i = 120 * 4; i < 200 * 4; ++i) {
      ASSERT_EQ(g.dk[i], 0);
      ASSERT_EQ(g.dv[i], 0);
    }
  });
}

// A segment gives the same outputs and gradients alone, first, in the middle and last in a packed row.
TEST(Attention, SegmentAloneEqualsPacked) {
  on_all_devices([](const Device& device) {
    const double tolerance = device.options.name == "ref" ? 1e-14 : 3e-6;
    for (const int64_t length : {1, 3, 100}) {
      const Problem alone = random_problem(1, Ints(static_cast<size_t>(length), 1), 0, {});
      const HostArray d_o = random_array(alone.q.shape, 6);
      const Outputs want = forward(device, alone);
      const Gradients want_gradients = backward(device, alone, want, d_o);
      for (const int64_t before : {0, 1, 62, 64, 100}) {
        for (const int64_t after : {0, 1, 70}) {
          const int64_t total = before + length + after;
          Ints segments(static_cast<size_t>(total), 9);
          std::fill_n(segments.begin(), before, 7);
          std::fill_n(segments.begin() + before, length, 8);
          Problem packed = random_problem(1, segments, 0, {});
          for (HostArray* a : {&packed.q, &packed.k, &packed.v}) {
            for (double& x : a->values) x = 3 * x + 1;
          }
          HostArray packed_d_o = random_array(packed.q.shape, 7);
          set_tokens(packed.q, before, alone.q);
          set_tokens(packed.k, before, alone.k);
          set_tokens(packed.v, before, alone.v);
          set_tokens(packed_d_o, before, d_o);
          SCOPED_TRACE(testing::Message()
                       << device.options.name << ": " << before << " + " << length << " + " << after);
          const Outputs got = forward(device, packed);
          const Gradients g = backward(device, packed, got, packed_d_o);
          expect_near(tokens_of(got.o, before, length), want.o, tolerance, "o");
          expect_near(tokens_of(got.lse, before, length), want.lse, tolerance, "lse");
          if (length > 1) {  // of one token dq and dk are zero up to rounding
            expect_near(tokens_of(g.dq, before, length), want_gradients.dq, tolerance, "dq");
            expect_near(tokens_of(g.dk, before, length), want_gradients.dk, tolerance, "dk");
          }
          expect_near(tokens_of(g.dv, before, length), want_gradients.dv, tolerance, "dv");
        }
      }
    }
  });
}

TEST(Attention, NaNInANeighbourOrInPaddingDoesNotLeak) {
  on_all_devices([](const Device& device) {
    // Poison: the padding (0) and the segments 2 and 5, within tiles and over whole tiles.
    Ints segments;
    for (const auto& [segment, length] : std::vector<std::pair<int32_t, int>>{
             {0, 3}, {1, 20}, {2, 5}, {3, 61}, {0, 70}, {4, 10}, {5, 80}, {6, 1}, {7, 30}, {0, 9}}) {
      segments.insert(segments.end(), static_cast<size_t>(length), segment);
    }
    const auto is_poisoned = [](int32_t segment) { return segment == 0 || segment == 2 || segment == 5; };
    const Problem clean = random_problem(1, segments, 0, {});
    const HostArray d_o = random_array(clean.q.shape, 6);
    const Outputs want = forward(device, clean);
    const Gradients want_gradients = backward(device, clean, want, d_o);
    Problem dirty = clean;
    HostArray dirty_d_o = d_o;
    for (int64_t t = 0; t < clean.params.q_tokens; ++t) {
      if (!is_poisoned(segments[static_cast<size_t>(t)])) continue;
      for (HostArray* a : {&dirty.q, &dirty.k, &dirty.v, &dirty_d_o}) fill_token(*a, t, kNan);
    }
    const Outputs got = forward(device, dirty);
    const Gradients g = backward(device, dirty, got, dirty_d_o);
    const auto check = [&](const HostArray& a, const HostArray& expected, const char* what) {
      for (int64_t t = 0; t < clean.params.q_tokens; ++t) {
        const int32_t segment = segments[static_cast<size_t>(t)];
        for (const double x : tokens_of(a, t, 1).values) {
          if (segment == 0) {
            ASSERT_EQ(x, 0) << what << " of padding token " << t;
          } else if (is_poisoned(segment)) {
            ASSERT_TRUE(std::isnan(x)) << what << " of poisoned token " << t;
          }
        }
        if (!is_poisoned(segment)) expect_same(tokens_of(a, t, 1), tokens_of(expected, t, 1), what);
      }
    };
    check(got.o, want.o, "o");
    check(got.lse, want.lse, "lse");
    check(g.dq, want_gradients.dq, "dq");
    check(g.dk, want_gradients.dk, "dk");
    check(g.dv, want_gradients.dv, "dv");
  });
}

// A row in two calls, the second with the keys of the first before its own: the same outputs, and the same gradients
// when those of the prefix are added.
TEST(Attention, RowInTwoPartsEqualsWholeRow) {
  on_all_devices([](const Device& device) {
    const double tolerance = device.options.name == "ref" ? 1e-13 : 3e-6;
    for (const SegmentLayout& layout : segment_layouts(150)) {
      const Problem whole = random_problem(1, layout.segments, 0, {});
      const HostArray d_o = random_array(whole.q.shape, 6);
      const Outputs want = forward(device, whole);
      const Gradients want_gradients = backward(device, whole, want, d_o);
      for (const int64_t cut : {1, 64, 75, 149}) {
        SCOPED_TRACE(device.options.name + " " + layout.name + " cut at " + std::to_string(cut));
        Problem first =
            random_problem(1, Ints(layout.segments.begin(), layout.segments.begin() + cut), 0, {});
        first.q = tokens_of(whole.q, 0, cut);
        first.k = tokens_of(whole.k, 0, cut);
        first.v = tokens_of(whole.v, 0, cut);
        Problem second = random_problem(1, layout.segments, cut, {});
        second.q = tokens_of(whole.q, cut, 150 - cut);
        second.k = whole.k;
        second.v = whole.v;
        const Outputs out1 = forward(device, first);
        const Outputs out2 = forward(device, second);
        expect_near(out1.o, tokens_of(want.o, 0, cut), tolerance, "o of the first part");
        expect_near(out2.o, tokens_of(want.o, cut, 150 - cut), tolerance, "o of the second part");
        expect_near(out2.lse, tokens_of(want.lse, cut, 150 - cut), tolerance, "lse of the second part");
        const Gradients g1 = backward(device, first, out1, tokens_of(d_o, 0, cut));
        const Gradients g2 = backward(device, second, out2, tokens_of(d_o, cut, 150 - cut));
        HostArray dq(whole.q.shape);
        HostArray dk = g2.dk;
        HostArray dv = g2.dv;
        set_tokens(dq, 0, g1.dq);
        set_tokens(dq, cut, g2.dq);
        for (int64_t i = 0; i < g1.dk.size(); ++i) {
          dk[i] += g1.dk[i];
          dv[i] += g1.dv[i];
        }
        expect_near(dq, want_gradients.dq, tolerance, "dq");
        expect_near(dk, want_gradients.dk, tolerance, "dk");
        expect_near(dv, want_gradients.dv, tolerance, "dv");
      }
    }
  });
}

TEST(Attention, NoTokens) {
  on_all_devices([](const Device& device) {
    const Problem none = random_problem(1, {}, 0, {});
    EXPECT_EQ(forward(device, none).o.size(), 0);
    EXPECT_EQ(backward(device, none, forward(device, none), none.q).dk.size(), 0);
    // No queries, but keys: their gradients are overwritten with zero.
    const Problem keys = random_problem(1, {1, 1, 0}, 3, {});
    const Gradients g = backward(device, keys, forward(device, keys), keys.q);
    for (const double x : g.dk.values) EXPECT_EQ(x, 0);
    for (const double x : g.dv.values) EXPECT_EQ(x, 0);
  });
}

}  // namespace
}  // namespace lathe::test
