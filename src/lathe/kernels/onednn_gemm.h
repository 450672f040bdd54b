// One-thread matrix products on tiles: the only door to oneDNN. Called inside parallel_for by the cpu
// kernels, each call on its own tile. Row-major with leading dimensions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lathe/core/cpu.h"
#include "lathe/core/dtype.h"

namespace lathe {

// Lowers the instruction set oneDNN uses. It is process-wide in oneDNN and settled by the first product: later calls
// change nothing.
void cap_onednn_isa(Isa isa);
[[nodiscard]] std::string onednn_version();
// True where gemm_bf16 multiplies bf16 natively: the processor does, and oneDNN is not capped below it.
[[nodiscard]] bool onednn_has_bf16();

// C[m, n] = alpha op(A) op(B) + beta C, f32. A is [m, k] with leading dimension lda ([k, m] if trans_a), and
// so on.
void gemm_f32(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
              int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
// The same with bf16 inputs and f32 sums, where the processor multiplies bf16 natively; beta is 0 or 1.
void gemm_bf16(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const BFloat16* a, int64_t lda,
               const BFloat16* b, int64_t ldb, float beta, float* c, int64_t ldc);

// The yardstick of benchmarks: one product of whole matrices, as the library does it on `threads` threads of its own. f32, or
// bf16 inputs with f32 sums. Not for kernels: it enters OpenMP.
class LibraryGemm {
 public:
  struct Problem {
    DType type = DType::kF32;  // of a and b
    bool trans_a = false;
    bool trans_b = false;
    int64_t m = 0;
    int64_t n = 0;
    int64_t k = 0;
    int threads = 1;
  };
  explicit LibraryGemm(const Problem& problem);
  ~LibraryGemm();
  LibraryGemm(const LibraryGemm&) = delete;
  LibraryGemm& operator=(const LibraryGemm&) = delete;
  void run(const void* a, const void* b, float* c);  // contiguous

 private:
  struct Primitive;
  Problem problem_;
  std::unique_ptr<Primitive> primitive_;  // bf16
};

}  // namespace lathe
