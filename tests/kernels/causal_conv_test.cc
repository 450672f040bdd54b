#include "lathe/kernels/causal_conv.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Ints = std::vector<int32_t>;

struct Problem {
  CausalConvParams params;
  HostArray x;
  HostArray w;
  Ints segments;
  HostArray tail;  // no shape: absent
  Ints tail_segments;

  [[nodiscard]] bool has_tail() const { return tail.shape.rank() != 0; }
  [[nodiscard]] int64_t reach() const { return params.taps - 1; }
};

struct Gradients {
  HostArray dx;
  HostArray dw;
  HostArray dx_tail;
};

struct Tail {
  HostArray x;
  Ints segments;
};

// The inputs of a problem on a device.
struct Placed {
  Tensor x, w, segments, tail, tail_segments;

  Placed(const Device& device, const Problem& p)
      : x(to_device(device, p.x)),
        w(to_device(device, p.w)),
        segments(
            to_device(device, integer_array({p.params.rows * p.params.tokens}, p.segments), DType::kI32)) {
    if (!p.has_tail()) return;
    tail = to_device(device, p.tail);
    tail_segments =
        to_device(device, integer_array({p.params.rows, p.reach()}, p.tail_segments), DType::kI32);
  }
};

HostArray forward(const Device& device, const Problem& p) {
  const Placed in(device, p);
  const Tensor y = poisoned(device, p.x.shape);
  device.kernels.causal_conv_forward(*device.queue, p.params, in.x, in.w, in.segments, in.tail,
                                     in.tail_segments, y);
  return to_host(device, y);
}

Gradients backward(const Device& device, const Problem& p, const HostArray& dy,
                   const HostArray* dw_before = nullptr) {
  const Placed in(device, p);
  const Tensor dx = poisoned(device, p.x.shape);
  const Tensor dw = to_device(device, dw_before == nullptr ? HostArray(p.w.shape) : *dw_before);
  Tensor dx_tail;
  if (p.has_tail()) dx_tail = poisoned(device, p.tail.shape);
  const Tensor scratch = poisoned(device, {causal_conv_backward_scratch(p.params)});
  device.kernels.causal_conv_backward(*device.queue, p.params, to_device(device, dy), in.x, in.w, in.segments,
                                      in.tail, in.tail_segments, dx, dw, dx_tail, scratch);
  return {to_host(device, dx), to_host(device, dw), p.has_tail() ? to_host(device, dx_tail) : HostArray()};
}

Tail tail_of(const Device& device, const Problem& p) {
  const Placed in(device, p);
  const Tensor next = poisoned(device, {p.params.rows, p.reach(), p.params.channels});
  const Tensor segments = poisoned(device, {p.params.rows, p.reach()}, DType::kI32);
  device.kernels.causal_conv_tail(*device.queue, p.params, in.x, in.segments, in.tail, in.tail_segments, next,
                                  segments);
  const HostArray ids = to_host(device, segments);
  return {to_host(device, next), Ints(ids.values.begin(), ids.values.end())};
}

Problem random_problem(int64_t rows, const Ints& row_segments, int64_t channels, int64_t taps) {
  const auto tokens = static_cast<int64_t>(row_segments.size());
  Problem p{{rows, tokens, channels, taps},
            random_array({rows * tokens, channels}, 1),
            random_array({channels, taps}, 2, 0.7),
            {},
            {},
            {}};
  for (int64_t r = 0; r < rows; ++r)
    p.segments.insert(p.segments.end(), row_segments.begin(), row_segments.end());
  return p;
}

// A tail whose newer half continues the row's first segment and whose older half is something else.
void add_tail(Problem& p) {
  p.tail = random_array({p.params.rows, p.reach(), p.params.channels}, 3);
  for (int64_t r = 0; r < p.params.rows; ++r) {
    const int32_t first = p.params.tokens > 0 ? p.segments[static_cast<size_t>(r * p.params.tokens)] : 1;
    for (int64_t i = 0; i < p.reach(); ++i) p.tail_segments.push_back(2 * i >= p.reach() - 1 ? first : 99);
  }
}

template <typename Fn>
void on_all_devices(const Fn& fn) {
  fn(make_ref_device(DType::kF64));
  for (const Isa isa : isas_at_hand()) fn(make_cpu_device(isa));
}

// Rows [begin, begin + count) of a problem of one row.
Problem part(const Problem& p, int64_t begin, int64_t count) {
  Problem out = p;
  const int64_t c = p.params.channels;
  out.params.tokens = count;
  out.x = HostArray({count, c}, {p.x.values.begin() + begin * c, p.x.values.begin() + (begin + count) * c});
  out.segments = Ints(p.segments.begin() + begin, p.segments.begin() + begin + count);
  return out;
}

HostArray rows_of(const HostArray& a, int64_t begin, int64_t count) {
  const int64_t c = a.shape[1];
  return {{count, c}, {a.values.begin() + begin * c, a.values.begin() + (begin + count) * c}};
}

TEST(CausalConv, GradientsMatchFiniteDifferences) {
  const Device ref = make_ref_device();
  for (const int64_t taps : {1, 2, 4}) {
    for (const SegmentLayout& layout : segment_layouts(13)) {
      for (const bool with_tail : {false, true}) {
        if (layout.name == "padding") continue;  // all gradients are zero
        // A tail is reached where the row begins inside a segment.
        if (with_tail && (taps == 1 || layout.segments[0] == 0)) continue;
        Problem problem = random_problem(2, layout.segments, 3, taps);
        if (with_tail) add_tail(problem);
        SCOPED_TRACE(testing::Message() << layout.name << " taps " << taps << " tail " << with_tail);
        const auto with = [&](const std::vector<HostArray>& in) {
          Problem moved = problem;
          moved.x = in[0];
          moved.w = in[1];
          if (with_tail) moved.tail = in[2];
          return moved;
        };
        std::vector<HostArray> inputs{problem.x, problem.w};
        if (with_tail) inputs.push_back(problem.tail);
        check_gradients(
            {"x", "w", "x_tail"}, inputs, [&](const auto& in) { return std::vector{forward(ref, with(in))}; },
            [&](const auto& in, const auto& cotangents) {
              const Gradients g = backward(ref, with(in), cotangents[0]);
              std::vector<HostArray> out{g.dx, g.dw};
              if (with_tail) out.push_back(g.dx_tail);
              return out;
            });
      }
    }
  }
}

void expect_parity(const Problem& problem, const std::string& what) {
  const Device ref = make_ref_device();
  const HostArray dy = random_array(problem.x.shape, 4);
  const HostArray before = random_array(problem.w.shape, 5);
  const HostArray y = forward(ref, problem);
  const Gradients want = backward(ref, problem, dy, &before);
  for (const Isa isa : isas_at_hand()) {
    SCOPED_TRACE(testing::Message() << what << " " << isa_name(isa));
    const Device one = make_cpu_device(isa, 1);
    const Device two = make_cpu_device(isa, 2);
    expect_near(forward(two, problem), y, 2e-6, "y");
    expect_same(forward(one, problem), forward(two, problem), "y with 1 and 2 threads");
    const Gradients got = backward(two, problem, dy, &before);
    const Gradients again = backward(one, problem, dy, &before);
    expect_near(got.dx, want.dx, 2e-6, "dx");
    expect_near(got.dw, want.dw, 5e-6, "dw");
    expect_near(got.dx_tail, want.dx_tail, 2e-6, "dx_tail");
    expect_same(again.dx, got.dx, "dx with 1 and 2 threads");
    expect_same(again.dw, got.dw, "dw with 1 and 2 threads");
    expect_same(again.dx_tail, got.dx_tail, "dx_tail with 1 and 2 threads");
  }
}

TEST(CausalConv, FastPathMatchesReference) {
  for (const int64_t tokens : {1, 2, 7, 513}) {
    for (const SegmentLayout& layout : segment_layouts(tokens)) {
      for (const int64_t channels : {1, 37, 259}) {
        if (tokens > 100 && channels == 259 && layout.name != "several") continue;
        Problem problem = random_problem(2, layout.segments, channels, 4);
        const std::string what =
            layout.name + " " + std::to_string(tokens) + " x " + std::to_string(channels);
        expect_parity(problem, what);
        add_tail(problem);
        expect_parity(problem, what + " with a tail");
      }
    }
  }
}

TEST(CausalConv, OtherNumbersOfTaps) {
  for (const int64_t taps : {1, 2, 3, 7, 16}) {
    Problem problem = random_problem(2, segment_layouts(40)[2].segments, 5, taps);
    expect_parity(problem, std::to_string(taps) + " taps");
    if (taps > 1) add_tail(problem);
    expect_parity(problem, std::to_string(taps) + " taps with a tail");
  }
}

TEST(CausalConv, OneTokenByHand) {
  on_all_devices([](const Device& device) {
    Problem problem = random_problem(1, {1, 1}, 1, 4);
    problem.x = HostArray({2, 1}, {2, 3});
    problem.w = HostArray({1, 4}, {1000, 100, 10, 1});
    const HostArray y = forward(device, problem);
    EXPECT_NEAR(y[0], 2 / (1 + std::exp(-2.0)), 1e-6);
    EXPECT_NEAR(y[1], 23, 1e-5);  // 10 x[0] + 1 x[1]: the last tap is the current token
  });
}

// A segment gives the same outputs and gradients alone, first, in the middle and last in a packed row.
TEST(CausalConv, SegmentAloneEqualsPacked) {
  on_all_devices([](const Device& device) {
    for (const int64_t length : {1, 2, 3, 4, 300}) {
      const Problem alone = random_problem(1, Ints(static_cast<size_t>(length), 1), 5, 4);
      const HostArray dy = random_array(alone.x.shape, 6);
      const HostArray y = forward(device, alone);
      const Gradients want = backward(device, alone, dy);
      for (const int64_t before : {0, 1, 2, 255, 300}) {
        for (const int64_t after : {0, 1, 5}) {
          const int64_t total = before + length + after;
          Problem packed = random_problem(1, Ints(static_cast<size_t>(total), 0), 5, 4);
          packed.x = random_array({total, 5}, 7, 3);
          HostArray packed_dy = random_array({total, 5}, 8, 3);
          for (int64_t t = 0; t < total; ++t) {
            const bool inside = t >= before && t < before + length;
            packed.segments[static_cast<size_t>(t)] = t < before ? 4 : inside ? 5 : 6;
            if (!inside) continue;
            for (int64_t c = 0; c < 5; ++c) {
              packed.x[t * 5 + c] = alone.x[(t - before) * 5 + c];
              packed_dy[t * 5 + c] = dy[(t - before) * 5 + c];
            }
          }
          SCOPED_TRACE(testing::Message()
                       << device.options.name << ": " << before << " + " << length << " + " << after);
          expect_same(rows_of(forward(device, packed), before, length), y, "y");
          expect_same(rows_of(backward(device, packed, packed_dy).dx, before, length), want.dx, "dx");
          for (int64_t t = 0; t < total; ++t) {
            if (t >= before && t < before + length) continue;
            for (int64_t c = 0; c < 5; ++c) packed_dy[t * 5 + c] = 0;
          }
          expect_near(backward(device, packed, packed_dy).dw, want.dw, 1e-6, "dw");
        }
      }
    }
  });
}

TEST(CausalConv, NaNInANeighbourOrInPaddingDoesNotLeak) {
  on_all_devices([](const Device& device) {
    // padding, a segment, poisoned segment, a segment, poisoned padding, a segment of one token
    const Ints segments{0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 0, 0, 4};
    const auto poisoned_token = [&](int64_t t) {
      return segments[static_cast<size_t>(t)] == 0 || segments[static_cast<size_t>(t)] == 2;
    };
    Problem clean = random_problem(1, segments, 4, 4);
    add_tail(clean);
    std::fill(clean.tail_segments.begin(), clean.tail_segments.end(), 7);
    Problem dirty = clean;
    HostArray dy = random_array(clean.x.shape, 6);
    HostArray dirty_dy = dy;
    for (double& x : dirty.tail.values) x = kNan;
    for (int64_t i = 0; i < clean.x.size(); ++i) {
      if (!poisoned_token(i / 4)) continue;
      dirty.x[i] = kNan;
      dirty_dy[i] = kNan;
    }
    const HostArray y = forward(device, clean);
    const HostArray dirty_y = forward(device, dirty);
    const Gradients want = backward(device, clean, dy);
    const Gradients got = backward(device, dirty, dirty_dy);
    for (int64_t i = 0; i < y.size(); ++i) {
      if (segments[static_cast<size_t>(i / 4)] == 0) {
        EXPECT_EQ(dirty_y[i], 0);
        EXPECT_EQ(got.dx[i], 0);
      } else if (!poisoned_token(i / 4)) {
        EXPECT_EQ(dirty_y[i], y[i]);
        EXPECT_EQ(got.dx[i], want.dx[i]);
      } else {
        EXPECT_TRUE(std::isnan(dirty_y[i]));
      }
    }
    for (const double g : got.dx_tail.values) EXPECT_EQ(g, 0);
    // Padding alone is poisoned: dw is clean too.
    for (int64_t i = 0; i < clean.x.size(); ++i) {
      if (segments[static_cast<size_t>(i / 4)] != 2) continue;
      dirty.x[i] = clean.x[i];
      dirty_dy[i] = dy[i];
    }
    expect_same(backward(device, dirty, dirty_dy).dw, want.dw, "dw");
  });
}

// Walks a row piece by piece, handing on the tail, then back, handing the tail's gradient to the piece
// before.
void expect_pieces_equal_whole(const Device& device, const Problem& whole,
                               const std::vector<int64_t>& lengths) {
  const int64_t c = whole.params.channels;
  const HostArray dy = random_array(whole.x.shape, 6);
  const HostArray y = forward(device, whole);
  const Gradients want = backward(device, whole, dy);
  std::vector<Problem> pieces;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    Problem piece = part(whole, begin, length);
    if (!pieces.empty()) {
      const Tail tail = tail_of(device, pieces.back());
      piece.tail = tail.x;
      piece.tail_segments = tail.segments;
    }
    expect_same(forward(device, piece), rows_of(y, begin, length), "y");
    pieces.push_back(piece);
    begin += length;
  }
  ASSERT_EQ(begin, whole.params.tokens);
  HostArray dw(whole.w.shape);
  std::vector<double> from_next(static_cast<size_t>(whole.reach() * c), 0.0);
  for (size_t i = pieces.size(); i-- > 0;) {
    const int64_t length = lengths[i];
    begin -= length;
    const Gradients g = backward(device, pieces[i], rows_of(dy, begin, length), &dw);
    dw = g.dw;
    // [dx_tail | dx], the gradient handed back added to its end.
    std::vector<double> joined = g.dx_tail.values;
    joined.resize(static_cast<size_t>(whole.reach() * c), 0.0);
    joined.insert(joined.end(), g.dx.values.begin(), g.dx.values.end());
    for (size_t j = 0; j < from_next.size(); ++j)
      joined[joined.size() - from_next.size() + j] += from_next[j];
    const auto middle = joined.begin() + whole.reach() * c;
    expect_near(HostArray({length, c}, {middle, joined.end()}), rows_of(want.dx, begin, length), 1e-6, "dx");
    from_next.assign(joined.begin(), middle);
  }
  expect_near(dw, want.dw, 1e-6, "dw");
}

TEST(CausalConv, RowInPiecesEqualsWholeRow) {
  on_all_devices([](const Device& device) {
    for (const SegmentLayout& layout : segment_layouts(12)) {
      if (layout.name == "padding") continue;
      SCOPED_TRACE(device.options.name + " " + layout.name);
      const Problem whole = random_problem(1, layout.segments, 3, 4);
      for (int64_t cut = 0; cut <= 12; ++cut) expect_pieces_equal_whole(device, whole, {cut, 12 - cut});
      expect_pieces_equal_whole(device, whole, {1, 1, 1, 2, 1, 0, 2, 4});
      expect_pieces_equal_whole(device, whole, std::vector<int64_t>(12, 1));
    }
  });
}

TEST(CausalConv, TailIsTheLastInputs) {
  on_all_devices([](const Device& device) {
    Problem problem = random_problem(1, {1, 2}, 1, 4);
    problem.x = HostArray({2, 1}, {5, 6});
    const Tail alone = tail_of(device, problem);
    EXPECT_EQ(alone.x.values, (std::vector<double>{0, 5, 6}));
    EXPECT_EQ(alone.segments, (Ints{0, 1, 2}));
    problem.tail = HostArray({1, 3, 1}, {7, 8, 9});
    problem.tail_segments = {1, 1, 3};
    const Tail joined = tail_of(device, problem);
    EXPECT_EQ(joined.x.values, (std::vector<double>{9, 5, 6}));
    EXPECT_EQ(joined.segments, (Ints{3, 1, 2}));
  });
}

TEST(CausalConv, WeightGradientIsOptional) {
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    const Problem p = random_problem(1, {1, 1, 2, 2, 2}, 6, 4);
    const HostArray dy = random_array(p.x.shape, 6);
    const Placed in(device, p);
    const Tensor dx = poisoned(device, p.x.shape);
    device.kernels.causal_conv_backward(*device.queue, p.params, to_device(device, dy), in.x, in.w,
                                        in.segments, {}, {}, dx, {}, {}, {});
    expect_same(to_host(device, dx), backward(device, p, dy).dx, "dx");
  }
}

TEST(CausalConv, NoTokens) {
  on_all_devices([](const Device& device) {
    Problem problem = random_problem(2, {}, 3, 4);
    EXPECT_EQ(forward(device, problem).size(), 0);
    add_tail(problem);
    const HostArray before = random_array(problem.w.shape, 5);
    const Gradients g = backward(device, problem, HostArray(Shape{0, 3}), &before);
    expect_near(g.dw, before, 1e-7, "dw");
    for (const double x : g.dx_tail.values) EXPECT_EQ(x, 0);
    expect_near(tail_of(device, problem).x, problem.tail, 1e-7, "tail");
  });
}

}  // namespace
}  // namespace lathe::test
