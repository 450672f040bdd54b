#include "lathe/head/log_prob_head.h"

#include <cmath>
#include <limits>

#include "head/head_runs.h"

namespace lathe::test {
namespace {

TEST(LogProbHead, GradientsByFiniteDifferencesAtEveryChunk) {
  const Device device = make_ref_device();
  constexpr int64_t kTokens = 5;
  std::vector<HeadWay> ways{fused(), known()};
  for (int64_t chunk = 1; chunk <= kTokens + 3; ++chunk) {
    ways.push_back(chunked(chunk));
    ways.push_back(local(chunk));
  }
  for (const bool with_entropy : {true, false}) {
    for (const HeadWay& way : ways) {
      HeadInputs in = random_head_inputs(kTokens, 4, 11);
      for (double& x : in.dtable.values) x = 0;
      const auto at = [&](const std::vector<HostArray>& x) {
        HeadInputs moved = in;
        moved.hidden = x[0];
        moved.table = x[1];
        return moved;
      };
      check_gradients(
          {"hidden", "table"}, {in.hidden, in.table},
          [&](const std::vector<HostArray>& x) {
            const HeadResults out = run_head(device, way, at(x));
            std::vector<HostArray> outputs{out.logp};
            if (with_entropy) outputs.push_back(out.entropy);
            return outputs;
          },
          [&](const std::vector<HostArray>& x, const std::vector<HostArray>& cotangents) {
            HeadInputs moved = at(x);
            moved.dlogp = cotangents[0];
            moved.dentropy = with_entropy ? cotangents[1] : HostArray();
            const HeadResults out = run_head(device, way, moved);
            return std::vector<HostArray>{out.dhidden, out.dtable};
          });
    }
  }
}

TEST(LogProbHead, CpuFollowsRefAtEveryChunk) {
  const HeadInputs in = random_head_inputs(37, 33, 151);
  for (const DType table : {DType::kF32, DType::kBF16}) {
    const HeadResults expected =
        run_head(make_ref_device(), chunked(37), in, table == DType::kF32 ? DType::kF64 : DType::kBF16);
    std::vector<HeadWay> ways{chunked(1024), local(1024), fused(), known()};
    for (int64_t chunk = 1; chunk <= 37 + 3; ++chunk) {
      ways.push_back(chunk % 2 == 0 ? chunked(chunk) : local(chunk));
    }
    for (const Isa isa : isas_at_hand()) {
      for (const HeadWay& way : ways) {
        const std::string what =
            fmt::format("{} table {} {}", isa_name(isa), dtype_name(table), name_of(way));
        const HeadResults two = run_head(make_cpu_device(isa, 2), way, in, table);
        expect_alike(two, expected, 3e-6, what);
        expect_same_results(run_head(make_cpu_device(isa, 1), way, in, table), two, "threads " + what);
      }
    }
  }
}

// Rounding to bf16 may flip where f32 and f64 logits differ, so the bound is that of a few such flips.
TEST(LogProbHead, Bf16ComputeFollowsRef) {
  const HeadInputs in = random_head_inputs(37, 33, 151);
  const HeadResults expected = run_head(make_ref_device(), chunked(37, DType::kBF16), in, DType::kBF16);
  for (const Isa isa : isas_at_hand()) {
    for (const HeadWay& way :
         {chunked(8, DType::kBF16), local(9, DType::kBF16), fused(DType::kBF16), known(DType::kBF16)}) {
      expect_alike(run_head(make_cpu_device(isa), way, in, DType::kBF16), expected, 1e-3,
                   fmt::format("{} {}", isa_name(isa), name_of(way)));
    }
  }
}

// With inputs that are bf16 the logits are exact but for f32 sums; one rounding more of them would move gradients by
// several per cent.
TEST(LogProbHead, GradientsOfBf16InputsAreWithinOnePerCent) {
  HeadInputs in = random_head_inputs(64, 256, 4096);
  in.dentropy = HostArray();
  for (double& x : in.dtable.values) x = 0;
  for (HostArray* values : {&in.hidden, &in.table}) {
    for (double& x : values->values) x = to_float(to_bfloat16(static_cast<float>(x)));
  }
  const HeadResults expected = run_head(make_ref_device(), chunked(64), in, DType::kF64);
  const auto relative = [](const HostArray& actual, const HostArray& wanted) {
    double gap = 0;
    double size = 0;
    for (int64_t i = 0; i < wanted.size(); ++i) {
      gap += std::pow(actual[i] - wanted[i], 2);
      size += std::pow(wanted[i], 2);
    }
    return std::sqrt(gap / size);
  };
  for (const Isa isa : isas_at_hand()) {
    for (const HeadWay& way :
         {chunked(16, DType::kBF16), local(16, DType::kBF16), fused(DType::kBF16), known(DType::kBF16)}) {
      const HeadResults out = run_head(make_cpu_device(isa), way, in, DType::kBF16);
      EXPECT_LT(relative(out.dhidden, expected.dhidden), 0.01) << isa_name(isa) << " " << name_of(way);
      EXPECT_LT(relative(out.dtable, expected.dtable), 0.01) << isa_name(isa) << " " << name_of(way);
    }
  }
}

TEST(LogProbHead, NeverHoldsMoreLogitsThanOneChunk) {
  const HeadInputs in = random_head_inputs(37, 5, 151);
  for (const Isa isa : isas_at_hand()) {
    const int64_t whole = int64_t{37} * 151 * 4;
    EXPECT_LE(run_head(make_cpu_device(isa), chunked(4), in).scratch, int64_t{4} * 151 * 4);
    EXPECT_LE(run_head(make_cpu_device(isa), local(4), in).scratch, int64_t{4} * 151 * 4);
    EXPECT_LE(run_head(make_cpu_device(isa), chunked(1024), in).scratch, whole);
  }
}

// Several blocks of tokens, several tiles of words to a group, the last of each not full.
TEST(LogProbHead, TilesThatDoNotDivideFollowRef) {
  HeadInputs in = random_head_inputs(kHeadTileTokens + 19, 5, kHeadGroups * kHeadTileVocab + 513);
  for (int64_t t = 0; t < in.hidden.shape[0]; t += 3) {  // peaked: one logit far above
    for (int64_t c = 0; c < 5; ++c) in.hidden[t * 5 + c] *= 8;
  }
  const HeadResults expected = run_head(make_ref_device(), fused(), in);
  for (const Isa isa : isas_at_hand()) {
    for (const HeadWay& way : {chunked(1024), local(200), fused(), known()}) {
      const std::string what = fmt::format("{} {}", isa_name(isa), name_of(way));
      const HeadResults two = run_head(make_cpu_device(isa, 2), way, in);
      expect_alike(two, expected, 3e-6, what);
      for (int64_t t = 0; t < in.hidden.shape[0]; ++t) {
        ASSERT_NEAR(two.logp[t], expected.logp[t], 4e-5) << what << " token " << t;
        ASSERT_GE(two.entropy[t], 0) << what << " token " << t;
      }
      expect_same_results(run_head(make_cpu_device(isa, 1), way, in), two, "threads " + what);
      HeadInputs from_zero = in;
      for (double& x : from_zero.dtable.values) x = 0;
      expect_near(run_head(make_cpu_device(isa, 2), way, in, DType::kF32, false).dtable,
                  run_head(make_cpu_device(isa, 2), way, from_zero).dtable, 1e-6, "written over " + what);
    }
  }
}

// Logits that are the same to the bit for every way: hidden states of one element 1, the table is the logits.
TEST(LogProbHead, SpecialLogitsBehaveAsInAPlainLogSoftmax) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr int64_t kVocab = 1300;  // three tiles
  const std::vector<std::vector<std::pair<int64_t, double>>> cases{{},
                                                                   {{700, kInfinity}},
                                                                   {{3, kInfinity}, {700, kInfinity}},
                                                                   {{3, -kInfinity}, {1200, -kInfinity}},
                                                                   {{1299, kNan}},
                                                                   {{3, kInfinity}, {1299, kNan}},
                                                                   {{5, 40.0}},
                                                                   {{5, 3e38}, {900, -3e38}},
                                                                   {{-1, -kInfinity}},  // all of them
                                                                   {{-1, -200.0}, {1299, 0.0}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const int32_t target : {3, 700, 1299}) {
      HeadInputs in = random_head_inputs(1, 1, kVocab);
      in.hidden[0] = in.temperature[0] = 1;
      in.targets[0] = target;
      in.dentropy = HostArray();
      for (const auto& [word, logit] : cases[i]) {
        for (int64_t v = 0; v < kVocab; ++v) {
          if (word < 0 || v == word) in.table[v] = logit;
        }
      }
      for (const Isa isa : isas_at_hand()) {
        const Device device = make_cpu_device(isa);
        const HeadResults plain = run_head(device, chunked(1), in);
        const HeadResults tiles = run_head(device, fused(), in);
        const std::string what = fmt::format("case {} target {}", i, target);
        if (std::isfinite(plain.logp[0])) {
          EXPECT_NEAR(tiles.logp[0], plain.logp[0], 2.4e-7 * std::max(1.0, std::abs(plain.logp[0]))) << what;
        } else {
          expect_same(tiles.logp, plain.logp, what);
        }
        EXPECT_EQ(std::isnan(tiles.entropy[0]), std::isnan(plain.entropy[0])) << what;
        if (!std::isnan(plain.entropy[0])) {
          EXPECT_NEAR(tiles.entropy[0], plain.entropy[0], 1e-5) << what;
        }
      }
    }
  }
}

TEST(LogProbHead, KnownFiniteLogits) {
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    HeadInputs in = random_head_inputs(5, 4, 11);
    const auto finite = [&](double temperature) {
      return logits_are_finite(device, to_device(device, in.hidden), to_device(device, in.table),
                               temperature);
    };
    EXPECT_TRUE(finite(1));
    EXPECT_TRUE(finite(1e-6));
    EXPECT_FALSE(finite(1e-32));
    in.table[7] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(finite(1));
    in = random_head_inputs(5, 4, 11);
    in.hidden[2] = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(finite(1));
  }
}

TEST(LogProbHead, ABlockOfKnownCotangentsHoldsItsLogitsInBounds) {
  EXPECT_EQ(known_cotangent_block(32768, DType::kF32), 512);
  EXPECT_EQ(known_cotangent_block(151936, DType::kF32), 384);
  EXPECT_EQ(known_cotangent_block(int64_t{1} << 24, DType::kF32), 64);
}

TEST(LogProbHead, TableGradientIsAddedAndMayBeLeftOut) {
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    for (const HeadWay& way : {chunked(4), local(4), fused(), known()}) {
      HeadInputs in = random_head_inputs(9, 6, 20);
      const HeadResults added = run_head(device, way, in);
      HeadInputs from_zero = in;
      for (double& x : from_zero.dtable.values) x = 0;
      HostArray expected = run_head(device, way, from_zero).dtable;
      expect_same(run_head(device, way, in, DType::kF32, false).dtable, expected,
                  "written over what was there");
      for (int64_t i = 0; i < expected.size(); ++i) expected[i] += in.dtable[i];
      expect_near(added.dtable, expected, 1e-6, "added to what was there");
      in.dtable = HostArray();
      const HeadResults frozen = run_head(device, way, in);
      EXPECT_EQ(frozen.dtable.shape.rank(), 0);
      expect_same(frozen.dhidden, added.dhidden, "dhidden with a frozen table");
    }
  }
}

TEST(LogProbHead, TokensWithoutCotangentsGiveNothing) {
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    HeadInputs in = random_head_inputs(9, 6, 20);
    for (int64_t t = 3; t < 9; ++t) in.dlogp[t] = in.dentropy[t] = 0;
    for (const HeadWay& way : {chunked(2), local(2), fused(), known()}) {
      const HeadResults all = run_head(device, way, in);
      for (int64_t i = 3 * 6; i < 9 * 6; ++i) ASSERT_EQ(all.dhidden[i], 0) << name_of(way);
    }
  }
}

TEST(LogProbHead, NoTokens) {
  const HeadInputs in = random_head_inputs(0, 6, 20);
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    for (const HeadWay& way : {chunked(4), local(4), fused()}) {
      const HeadResults out = run_head(device, way, in);
      EXPECT_EQ(out.logp.size(), 0);
      expect_same(out.dtable, to_host(device, to_device(device, in.dtable)), "the gradient of the table");
      const HeadResults over = run_head(device, way, in, DType::kF32, false);
      for (const double x : over.dtable.values) ASSERT_EQ(x, 0);
    }
  }
}

}  // namespace
}  // namespace lathe::test
