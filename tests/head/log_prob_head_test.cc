#include "lathe/head/log_prob_head.h"

#include <cmath>
#include <limits>

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

struct Inputs {
  HostArray hidden;
  HostArray table;
  std::vector<int32_t> targets;
  HostArray temperature;
  HostArray dlogp;
  HostArray dentropy;  // rank 0: absent
  HostArray dtable;    // what is there before; rank 0: frozen
};

struct Results {
  HostArray logp;
  HostArray entropy;
  HostArray dhidden;
  HostArray dtable;
  int64_t scratch = 0;  // bytes at the peak
};

Inputs random_inputs(int64_t tokens, int64_t dim, int64_t vocab) {
  Inputs in{
      random_array({tokens, dim}, 1),       random_array({vocab, dim}, 2, 0.5), {},
      uniform_array({tokens}, 3, 0.5, 1.5), random_array({tokens}, 4),          random_array({tokens}, 5),
      random_array({vocab, dim}, 6)};
  for (int64_t t = 0; t < tokens; ++t) in.targets.push_back(static_cast<int32_t>((t * 7919 + 3) % vocab));
  return in;
}

Results run(const Device& device, const HeadParams& params, const Inputs& in, DType table_type) {
  const Shape tokens{in.hidden.shape[0]};
  const Tensor hidden = to_device(device, in.hidden);
  const Tensor table = to_device(device, in.table, table_type);
  const Tensor targets = to_device(device, integer_array(tokens, in.targets), DType::kI32);
  const Tensor temperature = to_device(device, in.temperature);
  const Tensor logp = poisoned(device, tokens);
  const Tensor dlogp = to_device(device, in.dlogp);
  Tensor dentropy;
  if (in.dentropy.shape.rank() > 0) dentropy = to_device(device, in.dentropy);
  const Tensor dhidden = poisoned(device, in.hidden.shape);
  Tensor dtable;
  if (in.dtable.shape.rank() > 0) dtable = to_device(device, in.dtable);
  HeadSaved saved;
  device.memory->reset_peak();
  score(device, params, hidden, table, targets, temperature, logp, saved);
  score_backward(device, params, dlogp, dentropy, hidden, table, targets, temperature, saved, dhidden,
                 dtable);
  return {to_host(device, logp), to_host(device, saved.entropy), to_host(device, dhidden),
          dtable.empty() ? HostArray() : to_host(device, dtable),
          device.memory->peak().of(MemoryKind::kScratch)};
}

Results run(const Device& device, const HeadParams& params, const Inputs& in) {
  return run(device, params, in, device.float_type());
}

void expect_alike(const Results& actual, const Results& expected, double tolerance, const std::string& what) {
  expect_near(actual.logp, expected.logp, tolerance, "logp " + what);
  expect_near(actual.entropy, expected.entropy, tolerance, "entropy " + what);
  expect_near(actual.dhidden, expected.dhidden, tolerance, "dhidden " + what);
  expect_near(actual.dtable, expected.dtable, tolerance, "dtable " + what);
}

void expect_same_results(const Results& actual, const Results& expected, const std::string& what) {
  expect_same(actual.logp, expected.logp, "logp " + what);
  expect_same(actual.entropy, expected.entropy, "entropy " + what);
  expect_same(actual.dhidden, expected.dhidden, "dhidden " + what);
  expect_same(actual.dtable, expected.dtable, "dtable " + what);
}

TEST(LogProbHead, GradientsByFiniteDifferencesAtEveryChunk) {
  const Device device = make_ref_device();
  constexpr int64_t kTokens = 5;
  for (const bool with_entropy : {true, false}) {
    for (int64_t chunk = 1; chunk <= kTokens + 3; ++chunk) {
      Inputs in = random_inputs(kTokens, 4, 11);
      for (double& x : in.dtable.values) x = 0;
      const auto at = [&](const std::vector<HostArray>& x) {
        Inputs moved = in;
        moved.hidden = x[0];
        moved.table = x[1];
        return moved;
      };
      check_gradients(
          {"hidden", "table"}, {in.hidden, in.table},
          [&](const std::vector<HostArray>& x) {
            const Results out = run(device, {.chunk = chunk}, at(x));
            std::vector<HostArray> outputs{out.logp};
            if (with_entropy) outputs.push_back(out.entropy);
            return outputs;
          },
          [&](const std::vector<HostArray>& x, const std::vector<HostArray>& cotangents) {
            Inputs moved = at(x);
            moved.dlogp = cotangents[0];
            moved.dentropy = with_entropy ? cotangents[1] : HostArray();
            const Results out = run(device, {.chunk = chunk}, moved);
            return std::vector<HostArray>{out.dhidden, out.dtable};
          });
    }
  }
}

TEST(LogProbHead, CpuFollowsRefAtEveryChunk) {
  const Inputs in = random_inputs(37, 33, 151);
  for (const DType table : {DType::kF32, DType::kBF16}) {
    const Results expected =
        run(make_ref_device(), {.chunk = 37}, in, table == DType::kF32 ? DType::kF64 : DType::kBF16);
    for (const Isa isa : isas_at_hand()) {
      for (const int64_t chunk : {1, 8, 36, 37, 40, 1024}) {
        const std::string what = fmt::format("{} table {} chunk {}", isa_name(isa), dtype_name(table), chunk);
        const Results two = run(make_cpu_device(isa, 2), {.chunk = chunk}, in, table);
        expect_alike(two, expected, 3e-6, what);
        expect_same_results(run(make_cpu_device(isa, 1), {.chunk = chunk}, in, table), two,
                            "threads " + what);
      }
    }
  }
}

// Rounding to bf16 may flip where f32 and f64 logits differ, so the bound is that of a few such flips.
TEST(LogProbHead, Bf16ComputeFollowsRef) {
  const Inputs in = random_inputs(37, 33, 151);
  const Results expected = run(make_ref_device(), {.chunk = 37, .compute = DType::kBF16}, in, DType::kBF16);
  for (const Isa isa : isas_at_hand()) {
    expect_alike(run(make_cpu_device(isa), {.chunk = 8, .compute = DType::kBF16}, in, DType::kBF16), expected,
                 1e-3, isa_name(isa));
  }
}

// With inputs that are bf16 the logits are exact but for f32 sums; one rounding more of them would move gradients by
// several per cent.
TEST(LogProbHead, GradientsOfBf16InputsAreWithinOnePerCent) {
  Inputs in = random_inputs(64, 256, 4096);
  in.dentropy = HostArray();
  for (double& x : in.dtable.values) x = 0;
  for (HostArray* values : {&in.hidden, &in.table}) {
    for (double& x : values->values) x = to_float(to_bfloat16(static_cast<float>(x)));
  }
  const Results expected = run(make_ref_device(), {.chunk = 64, .compute = DType::kF32}, in, DType::kF64);
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
    const Results out = run(make_cpu_device(isa), {.chunk = 16, .compute = DType::kBF16}, in, DType::kBF16);
    EXPECT_LT(relative(out.dhidden, expected.dhidden), 0.01) << isa_name(isa);
    EXPECT_LT(relative(out.dtable, expected.dtable), 0.01) << isa_name(isa);
  }
}

TEST(LogProbHead, NeverHoldsMoreLogitsThanOneChunk) {
  const Inputs in = random_inputs(37, 5, 151);
  for (const Isa isa : isas_at_hand()) {
    const int64_t whole = int64_t{37} * 151 * 4;
    EXPECT_LE(run(make_cpu_device(isa), {.chunk = 4}, in).scratch, int64_t{4} * 151 * 4);
    EXPECT_LE(run(make_cpu_device(isa), {.chunk = 1024}, in).scratch, whole);
  }
}

TEST(LogProbHead, TableGradientIsAddedAndMayBeLeftOut) {
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    Inputs in = random_inputs(9, 6, 20);
    const Results added = run(device, {.chunk = 4}, in);
    Inputs from_zero = in;
    for (double& x : from_zero.dtable.values) x = 0;
    HostArray expected = run(device, {.chunk = 4}, from_zero).dtable;
    for (int64_t i = 0; i < expected.size(); ++i) expected[i] += in.dtable[i];
    expect_near(added.dtable, expected, 1e-6, "added to what was there");
    in.dtable = HostArray();
    const Results frozen = run(device, {.chunk = 4}, in);
    EXPECT_EQ(frozen.dtable.shape.rank(), 0);
    expect_same(frozen.dhidden, added.dhidden, "dhidden with a frozen table");
  }
}

TEST(LogProbHead, TokensWithoutCotangentsGiveNothing) {
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    Inputs in = random_inputs(9, 6, 20);
    for (int64_t t = 3; t < 9; ++t) in.dlogp[t] = in.dentropy[t] = 0;
    const Results all = run(device, {.chunk = 2}, in);
    for (int64_t i = 3 * 6; i < 9 * 6; ++i) ASSERT_EQ(all.dhidden[i], 0);
  }
}

TEST(LogProbHead, NoTokens) {
  const Inputs in = random_inputs(0, 6, 20);
  for (const Isa isa : isas_at_hand()) {
    const Device device = make_cpu_device(isa);
    const Results out = run(device, {}, in);
    EXPECT_EQ(out.logp.size(), 0);
    expect_same(out.dtable, to_host(device, to_device(device, in.dtable)), "the gradient of the table");
  }
}

}  // namespace
}  // namespace lathe::test
