#include "lathe/kernels/log_prob.h"

#include <cmath>
#include <limits>

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Inputs {
  HostArray logits;
  std::vector<int32_t> targets;
  HostArray temperature;
  HostArray dlogp;
  HostArray dentropy;  // rank 0: absent
};

struct Results {
  HostArray logp;
  HostArray entropy;
  HostArray dlogits;
};

Inputs random_inputs(int64_t tokens, int64_t vocab, double scale) {
  Inputs in{random_array({tokens, vocab}, 1, scale),
            {},
            uniform_array({tokens}, 2, 0.4, 1.6),
            random_array({tokens}, 3),
            random_array({tokens}, 4)};
  for (int64_t t = 0; t < tokens; ++t) in.targets.push_back(static_cast<int32_t>((t * 7919 + 3) % vocab));
  in.temperature[0] = 1;
  return in;
}

Results run(const Device& device, const Inputs& in, bool in_place = false) {
  const Shape tokens{in.logits.shape[0]};
  const Tensor logits = to_device(device, in.logits);
  const Tensor targets = to_device(device, integer_array(tokens, in.targets), DType::kI32);
  const Tensor temperature = to_device(device, in.temperature);
  const Tensor logp = poisoned(device, tokens);
  const Tensor entropy = poisoned(device, tokens);
  const Tensor stats = poisoned(device, {tokens[0], 2});
  device.kernels.log_prob_forward(*device.queue, logits, targets, temperature, logp, entropy, stats);
  const Tensor dlogp = to_device(device, in.dlogp);
  Tensor dentropy;
  if (in.dentropy.shape.rank() > 0) dentropy = to_device(device, in.dentropy);
  const Tensor other = poisoned(device, in.logits.shape);
  const View dlogits = in_place ? logits : other;
  device.kernels.log_prob_backward(*device.queue, dlogp, dentropy, logits, targets, temperature, entropy,
                                   stats, dlogits);
  return {to_host(device, logp), to_host(device, entropy), to_host(device, dlogits)};
}

// A plain log-softmax in f64, written from the formulas; without a cotangent of the entropy.
Results oracle(const Inputs& in) {
  const int64_t tokens = in.logits.shape[0];
  const int64_t vocab = in.logits.shape[1];
  Results out{HostArray({tokens}), HostArray({tokens}), HostArray(in.logits.shape)};
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> z;
    double m = -kInfinity;
    for (int64_t v = 0; v < vocab; ++v) {
      z.push_back(in.logits[t * vocab + v] / in.temperature[t]);
      m = std::isnan(z.back()) ? z.back() : std::max(m, z.back());
    }
    if (!std::isfinite(m)) m = 0;
    double sum = 0;
    for (const double x : z) sum += std::exp(x - m);
    const auto y = static_cast<size_t>(in.targets[static_cast<size_t>(t)]);
    out.logp[t] = z[y] - m - std::log(sum);
    for (size_t v = 0; v < z.size(); ++v) {
      const double p = std::exp(z[v] - m) / sum;
      out.entropy[t] -= p * (z[v] - m - std::log(sum));
      const double slope = (v == y ? 1.0 : 0.0) - p;
      out.dlogits[t * vocab + static_cast<int64_t>(v)] =
          in.dlogp[t] == 0 ? 0 : in.dlogp[t] * slope / in.temperature[t];
    }
  }
  return out;
}

void expect_alike(const HostArray& actual, const HostArray& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (int64_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << what << "[" << i << "] is " << actual[i] << ", expected NaN";
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ(actual[i], expected[i]) << what << "[" << i << "]";
    } else {
      EXPECT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << what << "[" << i << "]";
    }
  }
}

std::vector<Device> devices() {
  std::vector<Device> out;
  out.push_back(make_ref_device(DType::kF64));
  out.push_back(make_ref_device(DType::kF32));
  for (const Isa isa : isas_at_hand()) out.push_back(make_cpu_device(isa));
  return out;
}

std::string name_of(const Device& device) {
  return device.options.name + " " + dtype_name(device.float_type()) + " " + isa_name(device.options.isa);
}

TEST(LogProb, GradientsByFiniteDifferences) {
  const Device device = make_ref_device();
  for (const int64_t vocab : {2, 7, 23}) {
    Inputs in = random_inputs(5, vocab, 2);
    check_gradients(
        {"logits"}, {in.logits},
        [&](const std::vector<HostArray>& x) {
          Inputs moved = in;
          moved.logits = x[0];
          const Results out = run(device, moved);
          return std::vector<HostArray>{out.logp, out.entropy};
        },
        [&](const std::vector<HostArray>& x, const std::vector<HostArray>& cotangents) {
          Inputs at = in;
          at.logits = x[0];
          at.dlogp = cotangents[0];
          at.dentropy = cotangents[1];
          return std::vector<HostArray>{run(device, at).dlogits};
        });
    in.dentropy = HostArray();
    check_gradients(
        {"logits, no entropy"}, {in.logits},
        [&](const std::vector<HostArray>& x) {
          Inputs moved = in;
          moved.logits = x[0];
          return std::vector<HostArray>{run(device, moved).logp};
        },
        [&](const std::vector<HostArray>& x, const std::vector<HostArray>& cotangents) {
          Inputs at = in;
          at.logits = x[0];
          at.dlogp = cotangents[0];
          return std::vector<HostArray>{run(device, at).dlogits};
        });
  }
}

TEST(LogProb, RefFollowsThePlainLogSoftmax) {
  const Device device = make_ref_device();
  for (const int64_t vocab : {1, 2, 151}) {
    Inputs in = random_inputs(4, vocab, 3);
    in.dentropy = HostArray();
    const Results out = run(device, in);
    const Results expected = oracle(in);
    expect_alike(out.logp, expected.logp, 1e-13, "logp");
    expect_alike(out.entropy, expected.entropy, 1e-13, "entropy");
    expect_alike(out.dlogits, expected.dlogits, 1e-13, "dlogits");
  }
}

TEST(LogProb, CpuFollowsRef) {
  const Device ref = make_ref_device();
  for (const int64_t vocab : {1, 2, 151, 1000, 1037, 9001}) {
    for (const int64_t tokens : {1, 3, 37}) {
      const Inputs in = random_inputs(tokens, vocab, 4);
      const Results expected = run(ref, in);
      for (const Isa isa : isas_at_hand()) {
        const std::string what = fmt::format("{} x {} {}", tokens, vocab, isa_name(isa));
        const Results out = run(make_cpu_device(isa, 2), in);
        expect_alike(out.logp, expected.logp, 4e-6, "logp " + what);
        // The entropy is a sum of p z over the vocabulary: its rounding grows with the logits (here up to 40).
        expect_alike(out.entropy, expected.entropy, 1e-5, "entropy " + what);
        if (vocab > 1) expect_near(out.dlogits, expected.dlogits, 3e-6, "dlogits " + what);
        const Results one = run(make_cpu_device(isa, 1), in, true);
        expect_same(one.logp, out.logp, "one thread and two " + what);
        expect_same(one.entropy, out.entropy, "one thread and two " + what);
        expect_same(one.dlogits, out.dlogits, "one thread and two, in place " + what);
      }
    }
  }
}

TEST(LogProb, NoTokens) {
  for (const Device& device : devices()) {
    const Inputs in{HostArray({0, 5}), {}, HostArray({0}), HostArray({0}), HostArray({0})};
    EXPECT_EQ(run(device, in).dlogits.size(), 0);
  }
}

// One row per special case; the target is element 2, or 5 where the special value is to be the target.
TEST(LogProb, SpecialLogitsBehaveLikeAPlainLogSoftmax) {
  for (const int64_t vocab : {6, 37, 1037}) {
    struct Row {
      std::vector<std::pair<int64_t, double>> set;
      int32_t target = 2;
      double all = kNan;  // if not NaN: every logit
    };
    const std::vector<Row> rows{
        {{}, 2},
        {{{5, 40}}, 2},
        {{{5, 40}}, 5},
        {{{5, -kInfinity}}, 2},
        {{{5, -kInfinity}}, 5},
        {{{5, kInfinity}}, 2},
        {{{5, kInfinity}}, 5},
        {{{5, kNan}}, 2},
        {{{5, kNan}}, 5},
        {{{0, kNan}, {5, kInfinity}}, 2},
        {{}, 2, -kInfinity},
        {{{2, 1.0}}, 2, -kInfinity},
        {{}, 2, kInfinity},
        {{}, 2, 0.0},
        {{}, 2, -1e30},
        {{{5, 1e30}}, 2, -1e30},
    };
    const auto tokens = static_cast<int64_t>(rows.size());
    Inputs in = random_inputs(tokens, vocab, 1);
    in.dentropy = HostArray();
    for (int64_t t = 0; t < tokens; ++t) {
      const Row& row = rows[static_cast<size_t>(t)];
      in.targets[static_cast<size_t>(t)] = row.target;
      for (int64_t v = 0; v < vocab && !std::isnan(row.all); ++v) in.logits[t * vocab + v] = row.all;
      for (const auto& [v, x] : row.set) in.logits[t * vocab + v] = x;
      in.temperature[t] = t % 2 == 0 ? 1.0 : 0.5;
    }
    const Results expected = oracle(in);
    for (const Device& device : devices()) {
      const Results out = run(device, in);
      const std::string what = fmt::format(" {} vocab {}", name_of(device), vocab);
      expect_alike(out.logp, expected.logp, 1e-6, "logp" + what);
      expect_alike(out.dlogits, expected.dlogits, 1e-6, "dlogits" + what);
      for (int64_t t = 0; t < tokens; ++t) {
        bool finite = true;
        for (int64_t v = 0; v < vocab; ++v) finite = finite && std::isfinite(in.logits[t * vocab + v]);
        EXPECT_EQ(std::isnan(out.entropy[t]), !finite) << t << what;
        if (!finite) continue;
        EXPECT_GE(out.entropy[t], 0) << t << what;
        EXPECT_NEAR(out.entropy[t], expected.entropy[t], 1e-5 * (1 + expected.entropy[t])) << t << what;
      }
    }
  }
}

TEST(LogProb, ZeroCotangentsGiveZerosWhateverTheLogits) {
  for (const bool with_entropy : {false, true}) {
    Inputs in = random_inputs(6, 40, 1);
    if (!with_entropy) in.dentropy = HostArray();
    for (int64_t t = 0; t < 5; ++t) {
      in.dlogp[t] = 0;
      if (with_entropy) in.dentropy[t] = 0;
    }
    in.logits[0 * 40 + 3] = kNan;
    in.logits[1 * 40 + 3] = kInfinity;
    in.logits[2 * 40 + 3] = -kInfinity;
    for (int64_t v = 0; v < 40; ++v) in.logits[3 * 40 + v] = -kInfinity;
    for (const Device& device : devices()) {
      const HostArray d = run(device, in).dlogits;
      for (int64_t i = 0; i < 5 * 40; ++i) ASSERT_EQ(d[i], 0) << name_of(device) << " " << i;
      double size = 0;
      for (int64_t i = 5 * 40; i < 6 * 40; ++i) size += std::abs(d[i]);
      EXPECT_GT(size, 0) << name_of(device);
    }
  }
}

// Tokens without an entropy cotangent get the same bits whether the array is there or not.
TEST(LogProb, AbsentEntropyCotangentIsZero) {
  Inputs in = random_inputs(9, 1037, 2);
  for (double& x : in.dentropy.values) x = 0;
  for (const Device& device : devices()) {
    in.dentropy.shape = Shape{9};
    const HostArray with = run(device, in).dlogits;
    in.dentropy.shape = Shape();
    expect_same(run(device, in).dlogits, with, name_of(device));
  }
}

// A peak at the last entry of vocabularies that fill no vector: what lies behind the end must not enter the sum.
TEST(LogProb, PeakedLogitsOfAnyVocabulary) {
  for (const int64_t vocab : {151, 1000, 151937, 248321}) {
    Inputs in = random_inputs(2, vocab, 1);
    in.dentropy = HostArray();
    in.temperature[1] = 1;
    in.logits[vocab - 1] = 40;  // of the first token
    in.targets = {static_cast<int32_t>(vocab - 1), 3};
    for (double& x : in.logits.values) x -= 30;  // zeros would win
    const Results expected = oracle(in);
    for (const Device& device : devices()) {
      const Results out = run(device, in);
      expect_alike(out.logp, expected.logp, 3e-6, fmt::format("logp {}", vocab));
      expect_alike(out.entropy, expected.entropy, 3e-5, fmt::format("entropy {}", vocab));
    }
  }
}

}  // namespace
}  // namespace lathe::test
