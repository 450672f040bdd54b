#include "lathe/kernels/onednn_gemm.h"

#include <array>
#include <map>

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

// m, n, k, lda, ldb, ldc, flags.
using Bf16Key = std::array<int64_t, 7>;

dnnl::memory::desc strided(int64_t rows, int64_t columns, dnnl::memory::data_type type, int64_t ld,
                           bool transposed) {
  return {{rows, columns}, type, transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1}};
}

// What a thread needs to run bf16 products. A primitive is built in about a millisecond and must not be
// shared between threads without a scratchpad of each, so every thread keeps its own; nothing in it depends
// on who called.
class Bf16Products {
 public:
  void run(const Bf16Key& key, bool trans_a, bool trans_b, bool accumulate, const BFloat16* a,
           const BFloat16* b, float* c) {
    auto found = primitives_.find(key);
    if (found == primitives_.end()) {
      if (primitives_.size() >= kMaxPrimitives) primitives_.clear();
      found = primitives_.emplace(key, build(key, trans_a, trans_b, accumulate)).first;
    }
    const Primitive& p = found->second;
    // oneDNN has no pointer to const; it does not write to sources.
    const dnnl::memory source(p.a, engine_, const_cast<BFloat16*>(a));
    const dnnl::memory weights(p.b, engine_, const_cast<BFloat16*>(b));
    const dnnl::memory destination(p.c, engine_, c);
    p.product.execute(stream_,
                      {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, destination}});
    stream_.wait();
  }

 private:
  static constexpr size_t kMaxPrimitives = 512;
  struct Primitive {
    dnnl::memory::desc a;
    dnnl::memory::desc b;
    dnnl::memory::desc c;
    dnnl::matmul product;
  };

  [[nodiscard]] Primitive build(const Bf16Key& key, bool trans_a, bool trans_b, bool accumulate) const {
    const auto [m, n, k, lda, ldb, ldc, flags] = key;
    using Type = dnnl::memory::data_type;
    Primitive p{strided(m, k, Type::bf16, lda, trans_a),
                strided(k, n, Type::bf16, ldb, trans_b),
                strided(m, n, Type::f32, ldc, false),
                {}};
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    p.product = dnnl::matmul({{p.a, p.b, p.c}, attributes, engine_});
    return p;
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Bf16Key, Primitive> primitives_;
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
  const bool accumulate = beta != 0.0F;
  const int64_t flags = (trans_a ? 1 : 0) + (trans_b ? 2 : 0) + (accumulate ? 4 : 0);
  products.run({m, n, k, lda, ldb, ldc, flags}, trans_a, trans_b, accumulate, a, b, c);
}

}  // namespace lathe
