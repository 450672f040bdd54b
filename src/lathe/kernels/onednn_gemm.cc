#include "lathe/kernels/onednn_gemm.h"

#include <array>

#include <fmt/format.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "lathe/core/error.h"

namespace lathe {
namespace {

// oneDNN takes its thread count from OpenMP, call by call and at the creation of a primitive. Tiles are
// spread over threads by us, so every thread that comes here works alone, whichever queue it belongs to.
void work_alone() {
  omp_set_num_threads(1);
}

dnnl::cpu_isa onednn_isa(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return dnnl::cpu_isa::avx2;
    case Isa::kAvx512:
      return dnnl::cpu_isa::avx512_core;
    case Isa::kAvx512Bf16:
      return dnnl::cpu_isa::avx512_core_bf16;
    case Isa::kAmx:
      return dnnl::cpu_isa::avx512_core_amx;
  }
  return dnnl::cpu_isa::avx2;
}

// C = 0 or C = C, the product over nothing.
void scale(int64_t m, int64_t n, float beta, float* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == 0.0F ? 0.0F : beta * c[i * ldc + j];
  }
}

constexpr int64_t kAny = DNNL_RUNTIME_DIM_VAL;

// Row-major [rows, columns] with a leading dimension, or the transpose of a row-major [columns, rows].
dnnl::memory::desc strided(dnnl::memory::data_type type, int64_t rows, int64_t columns, int64_t ld,
                           bool transposed) {
  return {{rows, columns}, type, transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1}};
}

// bf16 products of one thread. The primitives leave all extents open: expert row counts differ from call to
// call, and a primitive with fixed extents costs a millisecond of code generation each time.
class Bf16Products {
 public:
  void run(bool trans_a, bool trans_b, bool accumulate, int64_t m, int64_t n, int64_t k, const BFloat16* a,
           int64_t lda, const BFloat16* b, int64_t ldb, float* c, int64_t ldc) {
    dnnl::matmul& product = products_[(trans_a ? 1U : 0U) + (trans_b ? 2U : 0U) + (accumulate ? 4U : 0U)];
    if (!product) product = build(trans_a, trans_b, accumulate);
    // oneDNN has no pointer to const; it does not write to sources.
    const dnnl::memory source(strided(kBf16, m, k, lda, trans_a), engine_, const_cast<BFloat16*>(a));
    const dnnl::memory weights(strided(kBf16, k, n, ldb, trans_b), engine_, const_cast<BFloat16*>(b));
    const dnnl::memory destination(strided(kF32, m, n, ldc, false), engine_, c);
    product.execute(stream_,
                    {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, destination}});
    stream_.wait();
  }

 private:
  static constexpr auto kBf16 = dnnl::memory::data_type::bf16;
  static constexpr auto kF32 = dnnl::memory::data_type::f32;

  [[nodiscard]] dnnl::matmul build(bool trans_a, bool trans_b, bool accumulate) const {
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::desc operation(strided(kBf16, kAny, kAny, kAny, trans_a),
                                       strided(kBf16, kAny, kAny, kAny, trans_b),
                                       strided(kF32, kAny, kAny, kAny, false));
    return dnnl::matmul({operation, attributes, engine_});
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::array<dnnl::matmul, 8> products_;
};

}  // namespace

void cap_onednn_isa(Isa isa) {
  // Fails once oneDNN has run; then the level of the first device of the process stays.
  static_cast<void>(dnnl_set_max_cpu_isa(static_cast<dnnl_cpu_isa_t>(onednn_isa(isa))));
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

bool onednn_has_bf16() {
  constexpr unsigned kBf16 = dnnl_cpu_isa_avx512_core_bf16;
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kBf16) == kBf16;
}

void gemm_f32(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
              int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    scale(m, n, beta, c, ldc);
    return;
  }
  work_alone();
  const dnnl_status_t status =
      dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  LATHE_CHECK(status == dnnl_success, "oneDNN: status {} for {} x {} x {}, leading {} {} {}",
              static_cast<int>(status), m, n, k, lda, ldb, ldc);
}

void gemm_bf16(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const BFloat16* a, int64_t lda,
               const BFloat16* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  LATHE_CHECK(beta == 0.0F || beta == 1.0F, "beta {}", beta);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    scale(m, n, beta, c, ldc);
    return;
  }
  work_alone();
  // Thread-local, not global: threads of any trainer share nothing through it.
  thread_local Bf16Products products;
  products.run(trans_a, trans_b, beta != 0.0F, m, n, k, a, lda, b, ldb, c, ldc);
}

struct LibraryGemm::Primitive {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul product;
};

LibraryGemm::LibraryGemm(const Problem& problem) : problem_(problem) {
  if (problem.type == DType::kF32) return;
  omp_set_num_threads(problem.threads);
  constexpr auto kBf16 = dnnl::memory::data_type::bf16;
  const auto& p = problem;
  primitive_ = std::make_unique<Primitive>();
  const dnnl::matmul::desc operation(strided(kBf16, p.m, p.k, p.trans_a ? p.m : p.k, p.trans_a),
                                     strided(kBf16, p.k, p.n, p.trans_b ? p.k : p.n, p.trans_b),
                                     strided(dnnl::memory::data_type::f32, p.m, p.n, p.n, false));
  primitive_->product = dnnl::matmul({operation, primitive_->engine});
}

LibraryGemm::~LibraryGemm() = default;

void LibraryGemm::run(const void* a, const void* b, float* c) {
  const Problem& p = problem_;
  omp_set_num_threads(p.threads);
  if (primitive_ == nullptr) {
    const dnnl_status_t status = dnnl_sgemm(
        p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', p.m, p.n, p.k, 1.0F, static_cast<const float*>(a),
        p.trans_a ? p.m : p.k, static_cast<const float*>(b), p.trans_b ? p.k : p.n, 0.0F, c, p.n);
    LATHE_CHECK(status == dnnl_success, "oneDNN: status {}", static_cast<int>(status));
  } else {
    constexpr auto kBf16 = dnnl::memory::data_type::bf16;
    const dnnl::memory source(strided(kBf16, p.m, p.k, p.trans_a ? p.m : p.k, p.trans_a), primitive_->engine,
                              const_cast<void*>(a));
    const dnnl::memory weights(strided(kBf16, p.k, p.n, p.trans_b ? p.k : p.n, p.trans_b), primitive_->engine,
                               const_cast<void*>(b));
    const dnnl::memory destination(strided(dnnl::memory::data_type::f32, p.m, p.n, p.n, false),
                                   primitive_->engine, c);
    primitive_->product.execute(
        primitive_->stream,
        {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, destination}});
    primitive_->stream.wait();
  }
}

}  // namespace lathe
