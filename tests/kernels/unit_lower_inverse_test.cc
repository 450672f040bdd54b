#include "lathe/kernels/unit_lower_inverse.h"

#include <cmath>

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

using Inverse = void (*)(int64_t n, const float* l, float* x, float* scratch);

std::vector<std::pair<std::string, Inverse>> inverses() {
  std::vector<std::pair<std::string, Inverse>> out{{"avx2", &avx2::unit_lower_inverse}};
  if (chosen_isa() >= Isa::kAvx512) out.emplace_back("avx512", &avx512::unit_lower_inverse);
  return out;
}

// beta_i <k_i, k_j> below the diagonal for unit keys whose correlation is `alike`; NaN elsewhere, where
// nobody reads.
std::vector<float> key_products(int64_t n, double alike, double beta, uint64_t seed) {
  constexpr int64_t kWidth = 32;
  HostArray keys = random_array({n, kWidth}, seed);
  const HostArray common = random_array({kWidth}, seed + 1);
  for (int64_t i = 0; i < n; ++i) {
    double squares = 0;
    for (int64_t c = 0; c < kWidth; ++c) {
      double& x = keys[i * kWidth + c];
      x = std::sqrt(1 - alike) * x + std::sqrt(alike) * common[c];
      squares += x * x;
    }
    for (int64_t c = 0; c < kWidth; ++c) keys[i * kWidth + c] /= std::sqrt(squares);
  }
  std::vector<float> l(static_cast<size_t>(n * n), std::nanf(""));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      double product = 0;
      for (int64_t c = 0; c < kWidth; ++c) product += keys[i * kWidth + c] * keys[j * kWidth + c];
      l[static_cast<size_t>(i * n + j)] = static_cast<float>(beta * product);
    }
  }
  return l;
}

HostArray inverse_in_f64(int64_t n, const std::vector<float>& l) {
  HostArray x({n, n});
  for (int64_t i = 0; i < n; ++i) {
    x[i * n + i] = 1;
    for (int64_t j = 0; j < i; ++j) {
      for (int64_t c = 0; c < n; ++c)
        x[i * n + c] -= static_cast<double>(l[static_cast<size_t>(i * n + j)]) * x[j * n + c];
    }
  }
  return x;
}

TEST(UnitLowerInverse, IsExactToRoundingForAlikeKeys) {
  for (const auto& [name, inverse] : inverses()) {
    for (const int64_t n : {1, 2, 5, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 127, 128}) {
      for (const double alike : {0.0, 0.9, 0.99, 1.0}) {
        for (const double beta : {0.3, 0.999}) {
          const std::vector<float> l = key_products(n, alike, beta, static_cast<uint64_t>(n));
          std::vector<float> x(l.size(), std::nanf(""));
          std::vector<float> scratch(l.size(), std::nanf(""));
          inverse(n, l.data(), x.data(), scratch.data());
          const HostArray actual({n, n}, std::vector<double>(x.begin(), x.end()));
          expect_near(actual, inverse_in_f64(n, l), 1e-5,
                      fmt::format("{} n {} alike {} beta {}", name, n, alike, beta));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe::test
