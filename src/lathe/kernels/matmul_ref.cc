#include "lathe/kernels/dense_product.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/matmul.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

void matmul(Queue& /*queue*/, const MatmulParams& params, ConstView a, ConstView b, View c) {
  const int64_t m = c.dim(0);
  const int64_t n = c.dim(1);
  const int64_t k = a.dim(params.trans_a ? 0 : 1);
  check_shape("matmul", "a", a, params.trans_a ? Shape{k, m} : Shape{m, k});
  check_shape("matmul", "b", b, params.trans_b ? Shape{n, k} : Shape{k, n});
  if (c.dtype == DType::kF64) {
    dense_product<double>(params.trans_a, params.trans_b, params.accumulate, params.compute, a, b, c);
  } else {
    dense_product<float>(params.trans_a, params.trans_b, params.accumulate, params.compute, a, b, c);
  }
}

}  // namespace

void register_matmul(KernelTable& table) {
  table.matmul = matmul;
}

}  // namespace lathe::ref
