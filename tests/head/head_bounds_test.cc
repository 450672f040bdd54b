// How far the head's programs may be from the reference in double, and from each other.
#include <algorithm>
#include <cmath>
#include <limits>

#include "head/head_runs.h"

namespace lathe::test {
namespace {

constexpr double kUlp = 1.0 / (1 << 23);

std::vector<HeadWay> every_way(int64_t chunk) {
  return {chunked(chunk), local(chunk), fused(), known()};
}

// Of every token: the largest |logit| over the temperature, and the log-sum-exp.
struct Rows {
  std::vector<double> largest;
  std::vector<double> log_sum;
};
Rows rows_of(const HeadInputs& in) {
  Rows out;
  const int64_t dim = in.hidden.shape[1];
  const int64_t vocab = in.table.shape[0];
  std::vector<double> z(static_cast<size_t>(vocab));
  for (int64_t t = 0; t < in.hidden.shape[0]; ++t) {
    for (int64_t v = 0; v < vocab; ++v) {
      double sum = 0;
      for (int64_t c = 0; c < dim; ++c) sum += in.hidden[t * dim + c] * in.table[v * dim + c];
      z[static_cast<size_t>(v)] = sum / in.temperature[t];
    }
    const auto [low, high] = std::minmax_element(z.begin(), z.end());
    out.largest.push_back(std::max(std::abs(*low), std::abs(*high)));
    double sum = 0;
    for (const double x : z) sum += std::exp(x - *high);
    out.log_sum.push_back(*high + std::log(sum));
  }
  return out;
}

// Largest error over what is allowed, for each result.
struct Errors {
  double logp = 0;
  double entropy = 0;
  double dhidden = 0;
  double dtable = 0;
};
double of_largest(const HostArray& actual, const HostArray& expected) {
  double gap = 0;
  double largest = 0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    gap = std::max(gap, std::abs(actual[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return gap / largest;
}
Errors errors_of(const HeadResults& actual, const HeadResults& expected, const Rows& rows) {
  Errors out;
  for (size_t t = 0; t < rows.largest.size(); ++t) {
    const auto i = static_cast<int64_t>(t);
    out.logp = std::max(
        out.logp, std::abs(actual.logp[i] - expected.logp[i]) / (4 * kUlp * std::max(1.0, rows.largest[t])));
    out.entropy = std::max(out.entropy, std::abs(actual.entropy[i] - expected.entropy[i]) /
                                            (3e-5 * std::max(1.0, rows.log_sum[t])));
    EXPECT_GE(actual.entropy[i], 0);
  }
  out.dhidden = of_largest(actual.dhidden, expected.dhidden) / 5e-6;
  out.dtable = of_largest(actual.dtable, expected.dtable) / 5e-6;
  return out;
}

void expect_within(const Errors& e, const std::string& what) {
  EXPECT_LE(e.logp, 1) << what;
  EXPECT_LE(e.entropy, 1) << what;
  EXPECT_LE(e.dhidden, 1) << what;
  EXPECT_LE(e.dtable, 1) << what;
}
// A result that happens to be exact leaves no room at all, so a sixteenth of the bound counts as none.
void expect_no_further_than_twice(const Errors& e, const Errors& plain, const std::string& what) {
  const auto twice = [](double x) { return 2 * std::max(x, 1.0 / 16); };
  EXPECT_LE(e.logp, twice(plain.logp)) << what;
  EXPECT_LE(e.entropy, twice(plain.entropy)) << what;
  EXPECT_LE(e.dhidden, twice(plain.dhidden)) << what;
  EXPECT_LE(e.dtable, twice(plain.dtable)) << what;
}

TEST(HeadBounds, EveryProgramIsAsCloseToRefAsF32Allows) {
  struct Case {
    int64_t tokens, dim, vocab;
  };
  for (const auto& [tokens, dim, vocab] : {Case{1, 8, 3}, Case{1, 300, 2000}, Case{37, 33, 151},
                                           Case{48, 256, 4097}, Case{531, 6, 1111}, Case{20, 1100, 700}}) {
    HeadInputs in = random_head_inputs(tokens, dim, vocab);
    const auto scale = static_cast<float>(2 / std::sqrt(static_cast<double>(dim)));
    for (double& x : in.table.values) x = static_cast<double>(static_cast<float>(x) * scale);
    for (double& x : in.dtable.values) x = 0;
    const Rows rows = rows_of(in);
    for (const bool with_entropy : {true, false}) {
      if (!with_entropy) in.dentropy = HostArray();
      const HeadResults expected = run_head(make_ref_device(), chunked(tokens), in);
      for (const Isa isa : isas_at_hand()) {
        const Device device = make_cpu_device(isa);
        const Errors plain = errors_of(run_head(device, chunked(tokens), in), expected, rows);
        for (const HeadWay& way : every_way(std::max<int64_t>(1, tokens / 3))) {
          const std::string what =
              fmt::format("{} x {} x {} {} {}", tokens, dim, vocab, isa_name(isa), name_of(way));
          const Errors errors = errors_of(run_head(device, way, in), expected, rows);
          expect_within(errors, what);
          expect_no_further_than_twice(errors, plain, what);
        }
      }
    }
  }
}

// Hidden states of one element that is a power of two: the table's elements times it are the logits, exactly.
TEST(HeadBounds, OnTheSameLogitsProgramsAreOneUlpApart) {
  constexpr int64_t kTokens = 40;
  constexpr int64_t kVocab = 20011;
  for (const double offset : {0.0, -30.0, 30.0}) {
    HeadInputs in = random_head_inputs(kTokens, 1, kVocab);
    for (int64_t t = 0; t < kTokens; ++t) in.hidden[t] = std::ldexp(1.0, static_cast<int>(t % 4) - 1);
    for (double& x : in.table.values) x = static_cast<double>(static_cast<float>(4 * x + offset));
    const Rows rows = rows_of(in);
    for (const Isa isa : isas_at_hand()) {
      const Device device = make_cpu_device(isa);
      const HeadResults plain = run_head(device, chunked(7), in);
      for (const HeadWay& way : {local(11), fused(), known()}) {
        const HeadResults other = run_head(device, way, in);
        for (int64_t t = 0; t < kTokens; ++t) {
          const auto size = static_cast<float>(std::max(1.0, std::abs(rows.log_sum[static_cast<size_t>(t)])));
          const double ulp = std::nextafter(size, std::numeric_limits<float>::infinity()) - size;
          EXPECT_LE(std::abs(other.logp[t] - plain.logp[t]), ulp)
              << isa_name(isa) << " " << name_of(way) << " token " << t;
        }
      }
    }
  }
}

TEST(HeadBounds, PeakedLogitsOfAnyVocabulary) {
  for (const int64_t vocab : {151, 1000, 151937, 248321}) {
    HeadInputs in = random_head_inputs(2, 1, vocab);
    in.hidden[0] = in.hidden[1] = in.temperature[0] = in.temperature[1] = 1;
    in.dentropy = HostArray();
    for (double& x : in.table.values) x = static_cast<double>(static_cast<float>(x - 30));  // zeros would win
    in.table[vocab - 1] = 10;
    in.targets = {static_cast<int32_t>(vocab - 1), 3};
    const HeadResults expected = run_head(make_ref_device(), chunked(2), in);
    for (const Isa isa : isas_at_hand()) {
      for (const HeadWay& way : every_way(1)) {
        const HeadResults out = run_head(make_cpu_device(isa), way, in);
        const std::string what = fmt::format("{} {} vocabulary {}", isa_name(isa), name_of(way), vocab);
        for (const int64_t t : {0, 1}) {
          EXPECT_NEAR(out.logp[t], expected.logp[t], 4 * kUlp * 40) << what;
          EXPECT_NEAR(out.entropy[t], expected.entropy[t], 3e-5) << what;
          EXPECT_GE(out.entropy[t], 0) << what;
        }
      }
    }
  }
}

// One token of many is scored: it has the bits that it has with all of them, whatever stands in the others' places.
TEST(HeadBounds, WhatIsNotScoredCannotMatter) {
  const HeadInputs all = random_head_inputs(9, 6, 700);
  const auto scored = [&](const Device& device, const HeadWay& way, double elsewhere) {
    HeadInputs row = all;
    for (int64_t i = 0; i < row.hidden.size(); ++i) {
      if (i / 6 != 4) row.hidden[i] = elsewhere;
    }
    const Tensor hidden = to_device(device, row.hidden);
    const Tensor index = to_device(device, integer_array({1}, {4}), DType::kI32);
    const Tensor gathered = poisoned(device, {1, 6});
    device.kernels.gather_rows(*device.queue, hidden, index, gathered);
    HeadInputs one = random_head_inputs(1, 6, 700);
    one.table = all.table;
    one.hidden = to_host(device, gathered);
    return run_head(device, way, one);
  };
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    for (const HeadWay& way : every_way(4)) {
      const HeadResults plain = scored(device, way, 0.5);
      for (const double x : plain.dtable.values) ASSERT_TRUE(std::isfinite(x));
      for (const double poison :
           {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        expect_same_results(scored(device, way, poison), plain, name_of(way));
      }
    }
  }
}

TEST(HeadBounds, GreedyTemperatureCountsAsOne) {
  HeadInputs in = random_head_inputs(7, 5, 700);
  for (const Device& device : {make_ref_device(), make_cpu_device(Isa::kAvx2)}) {
    for (const HeadWay& way : every_way(3)) {
      for (double& x : in.temperature.values) x = 1;
      const HeadResults one = run_head(device, way, in);
      for (double& x : in.temperature.values) x = 0;
      expect_same_results(run_head(device, way, in), one, name_of(way));
    }
  }
}

// The last target of several chunks, blocks and tiles is bad: nothing is computed for the first ones either.
TEST(HeadBounds, TargetsOutsideTheVocabularyAreRefusedFirst) {
  HeadInputs in = random_head_inputs(600, 2, 20);
  for (const int32_t bad : {20, -1, std::numeric_limits<int32_t>::min()}) {
    in.targets.back() = bad;
    for (const HeadWay& way : every_way(4)) {
      const Device device = make_cpu_device(Isa::kAvx2);
      const Tensor hidden = to_device(device, in.hidden);
      const Tensor table = to_device(device, in.table);
      const Tensor targets = to_device(device, integer_array({600}, in.targets), DType::kI32);
      const Tensor temperature = to_device(device, in.temperature);
      const Tensor logp = poisoned(device, {600});
      const Tensor entropy = poisoned(device, {600});
      const Tensor dhidden = poisoned(device, {600, 2});
      HeadSaved saved;
      const auto score_it = [&] {
        if (way.known) {
          const auto give = [](int64_t, ConstView, ConstView, View, View) {
            FAIL() << "something was scored";
          };
          score_known(device, way.params, hidden, table, targets, temperature, give, false, logp, entropy,
                      dhidden, {}, false);
        } else {
          score(device, way.params, hidden, table, targets, temperature, logp, entropy, saved);
        }
      };
      EXPECT_THROW(score_it(), std::exception) << name_of(way);
      for (const double x : to_host(device, logp).values) ASSERT_TRUE(std::isnan(x)) << name_of(way);
    }
  }
}

}  // namespace
}  // namespace lathe::test
