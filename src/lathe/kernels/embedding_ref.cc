#include "lathe/kernels/access.h"
#include "lathe/kernels/embedding.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/ref_float.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

int64_t checked_id(ConstView ids, int64_t token, int64_t vocab) {
  const int64_t id = elements<int32_t>(ids)[token];
  LATHE_CHECK(id >= 0 && id < vocab, "embedding: id {} of a vocabulary of {}", id, vocab);
  return id;
}

void embedding_forward(Queue& /*queue*/, ConstView ids, ConstView table, View x) {
  const int64_t tokens = ids.dim(0);
  const int64_t dim = table.dim(1);
  check_shape("embedding_forward", "x", x, Shape{tokens, dim});
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t id = checked_id(ids, t, table.dim(0));
    for (int64_t c = 0; c < dim; ++c) {
      const int64_t from = id * dim + c;
      const int64_t to = t * dim + c;
      if (table.dtype == DType::kBF16) {
        elements<float>(x)[to] = to_float(elements<BFloat16>(table)[from]);
      } else if (table.dtype == DType::kF64) {
        elements<double>(x)[to] = elements<double>(table)[from];
      } else {
        elements<float>(x)[to] = elements<float>(table)[from];
      }
    }
  }
}

void embedding_backward(Queue& /*queue*/, ConstView dx, ConstView ids, View dtable) {
  const int64_t tokens = ids.dim(0);
  const int64_t dim = dtable.dim(1);
  check_shape("embedding_backward", "dx", dx, Shape{tokens, dim});
  with_float_type(dx.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t id = checked_id(ids, t, dtable.dim(0));
      for (int64_t c = 0; c < dim; ++c) elements<T>(dtable)[id * dim + c] += elements<T>(dx)[t * dim + c];
    }
  });
}

}  // namespace

void register_embedding(KernelTable& table) {
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
}

}  // namespace lathe::ref
