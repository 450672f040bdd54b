#include "lathe/kernels/access.h"
#include "lathe/kernels/embedding.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_blocks.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

template <typename T>
void copy_rows(Queue& queue, ConstView ids, ConstView table, View x) {
  const int64_t dim = table.dim(1);
  const int64_t vocab = table.dim(0);
  const int32_t* id = elements<int32_t>(ids);
  const T* rows = elements<T>(table);
  float* out = elements<float>(x);
  for_row_blocks(queue, ids.dim(0), dim, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      LATHE_CHECK(id[t] >= 0 && id[t] < vocab, "embedding: id {} of a vocabulary of {}", id[t], vocab);
      const T* from = rows + id[t] * dim;
      float* to = out + t * dim;
#pragma omp simd
      for (int64_t c = 0; c < dim; ++c) to[c] = to_f32(from[c]);
    }
  });
}

void embedding_forward(Queue& queue, ConstView ids, ConstView table, View x) {
  check_shape("embedding_forward", "x", x, Shape{ids.dim(0), table.dim(1)});
  if (table.dtype == DType::kBF16) {
    copy_rows<BFloat16>(queue, ids, table, x);
  } else {
    copy_rows<float>(queue, ids, table, x);
  }
}

// A task owns a range of columns and goes through all tokens in order: no two tasks touch the same element,
// and each element is summed in token order.
void embedding_backward(Queue& queue, ConstView dx, ConstView ids, View dtable) {
  constexpr int64_t kColumns = 64;
  const int64_t tokens = ids.dim(0);
  const int64_t vocab = dtable.dim(0);
  const int64_t dim = dtable.dim(1);
  check_shape("embedding_backward", "dx", dx, Shape{tokens, dim});
  const int32_t* id = elements<int32_t>(ids);
  const float* grad = elements<float>(dx);
  float* rows = elements<float>(dtable);
  for_blocks(queue, dim, kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < tokens; ++t) {
      LATHE_CHECK(id[t] >= 0 && id[t] < vocab, "embedding: id {} of a vocabulary of {}", id[t], vocab);
      const float* from = grad + t * dim;
      float* to = rows + id[t] * dim;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace

void register_embedding(KernelTable& table) {
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
