#include "lathe/kernels/onednn_gemm.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "lathe/core/rng.h"

namespace lathe {
namespace {

constexpr float kUntouched = 3.25F;

// Row-major [rows, ld], the first `columns` of each row random multiples of 1/8 (exact in bf16), the rest
// NaN.
std::vector<float> padded(int64_t rows, int64_t columns, int64_t ld, uint64_t seed) {
  const CounterRng rng(seed, 3);
  std::vector<float> out(static_cast<size_t>(rows * ld), std::numeric_limits<float>::quiet_NaN());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const double x = rng.uniform(static_cast<uint64_t>(i * columns + j));
      out[static_cast<size_t>(i * ld + j)] = static_cast<float>(std::floor(x * 32) / 8 - 2);
    }
  }
  return out;
}

std::vector<BFloat16> as_bf16(const std::vector<float>& x) {
  std::vector<BFloat16> out;
  for (const float value : x) out.push_back(to_bfloat16(value));
  return out;
}

struct Case {
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t padding = 0;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const int flags : {0, 1, 2, 3, 4, 5, 6, 7}) {
    for (const int64_t m : {0, 1, 3, 65}) {
      for (const int64_t n : {0, 1, 64, 67}) {
        for (const int64_t k : {0, 1, 31, 130}) {
          out.push_back({(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, m, n, k, (m + n + k) % 2 * 3});
        }
      }
    }
  }
  return out;
}

// The values are small multiples of 1/64, so every order of adding gives the same sum.
void check_case(const Case& t, bool bf16) {
  const int64_t lda = (t.trans_a ? t.m : t.k) + t.padding;
  const int64_t ldb = (t.trans_b ? t.k : t.n) + t.padding;
  const int64_t ldc = t.n + t.padding;
  const auto a = padded(t.trans_a ? t.k : t.m, t.trans_a ? t.m : t.k, lda, 1);
  const auto b = padded(t.trans_b ? t.n : t.k, t.trans_b ? t.k : t.n, ldb, 2);
  const float before = t.accumulate ? 0.5F : std::numeric_limits<float>::quiet_NaN();
  std::vector<float> c(static_cast<size_t>(t.m * ldc), kUntouched);
  for (int64_t i = 0; i < t.m; ++i) {
    for (int64_t j = 0; j < t.n; ++j) c[static_cast<size_t>(i * ldc + j)] = before;
  }
  const float beta = t.accumulate ? 1.0F : 0.0F;
  if (bf16) {
    gemm_bf16(t.trans_a, t.trans_b, t.m, t.n, t.k, as_bf16(a).data(), lda, as_bf16(b).data(), ldb, beta,
              c.data(), ldc);
  } else {
    gemm_f32(t.trans_a, t.trans_b, t.m, t.n, t.k, 1.0F, a.data(), lda, b.data(), ldb, beta, c.data(), ldc);
  }
  for (int64_t i = 0; i < t.m; ++i) {
    for (int64_t j = 0; j < ldc; ++j) {
      float expected = t.accumulate ? 0.5F : 0.0F;
      for (int64_t l = 0; j < t.n && l < t.k; ++l) {
        expected += a[static_cast<size_t>(t.trans_a ? l * lda + i : i * lda + l)] *
                    b[static_cast<size_t>(t.trans_b ? j * ldb + l : l * ldb + j)];
      }
      ASSERT_EQ(c[static_cast<size_t>(i * ldc + j)], j < t.n ? expected : kUntouched)
          << (bf16 ? "bf16 " : "f32 ") << t.m << " x " << t.n << " x " << t.k << " transposes " << t.trans_a
          << t.trans_b << " accumulate " << t.accumulate << " at " << i << ", " << j;
    }
  }
}

TEST(OnednnGemm, F32HonoursLeadingDimensionsTransposesAndZeroExtents) {
  for (const Case& t : cases()) check_case(t, false);
}

TEST(OnednnGemm, AlphaAndBetaScale) {
  const std::vector<float> a{1, 2};
  const std::vector<float> b{3, 4};
  std::vector<float> c{10};
  gemm_f32(false, false, 1, 1, 2, 2.0F, a.data(), 2, b.data(), 1, 0.5F, c.data(), 1);
  EXPECT_EQ(c[0], 27);
  gemm_f32(false, false, 1, 1, 0, 2.0F, a.data(), 2, b.data(), 1, 0.5F, c.data(), 1);
  EXPECT_EQ(c[0], 13.5F);
}

// In a process of its own: another test may have capped oneDNN below bf16 for good.
TEST(OnednnGemmDeathTest, Bf16IsExactWhereItIsNative) {
  if (!has_native_bf16(chosen_isa())) GTEST_SKIP() << "no native bf16 here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    cap_onednn_isa(chosen_isa());
    if (!onednn_has_bf16()) std::_Exit(3);
    for (const Case& t : cases()) check_case(t, true);
    std::_Exit(testing::Test::HasFailure() || !onednn_has_bf16() ? 1 : 0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

TEST(OnednnGemmDeathTest, CappedBelowBf16ItSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    cap_onednn_isa(Isa::kAvx2);
    std::_Exit(onednn_has_bf16() ? 1 : 0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lathe
