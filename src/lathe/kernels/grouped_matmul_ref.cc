#include "lathe/kernels/dense_product.h"
#include "lathe/kernels/grouped_matmul.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

namespace lathe::ref {
namespace {

void product(bool trans_a, bool trans_b, bool accumulate, DType compute, ConstView a, ConstView b, View c) {
  if (c.dtype == DType::kF64) {
    dense_product<double>(trans_a, trans_b, accumulate, compute, a, b, c);
  } else {
    dense_product<float>(trans_a, trans_b, accumulate, compute, a, b, c);
  }
}

void grouped_matmul(Queue& /*queue*/, const GroupedMatmulParams& params, ConstView a, ConstView w,
                    ConstView offsets, View c) {
  const int64_t experts = w.dim(0);
  check_shape("grouped_matmul", "offsets", offsets, {experts + 1});
  check_shape("grouped_matmul", "a", a, {a.dim(0), w.dim(params.trans_w ? 2 : 1)});
  check_shape("grouped_matmul", "c", c, {a.dim(0), w.dim(params.trans_w ? 1 : 2)});
  const int32_t* const begin = elements<int32_t>(offsets);
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = begin[e + 1] - begin[e];
    const ConstView we = w.rows(e, 1).reshape({w.dim(1), w.dim(2)});
    product(false, params.trans_w, false, params.compute, a.rows(begin[e], rows), we, c.rows(begin[e], rows));
  }
}

void weight_gradient(Queue& /*queue*/, const GroupedMatmulParams& params, ConstView dy, ConstView x,
                     ConstView offsets, View dw) {
  const int64_t experts = dw.dim(0);
  check_shape("grouped_matmul", "offsets", offsets, {experts + 1});
  check_shape("grouped_matmul", "dy", dy, {dy.dim(0), dw.dim(1)});
  check_shape("grouped_matmul", "x", x, {dy.dim(0), dw.dim(2)});
  const int32_t* const begin = elements<int32_t>(offsets);
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = begin[e + 1] - begin[e];
    const View dwe = dw.rows(e, 1).reshape({dw.dim(1), dw.dim(2)});
    product(true, false, true, params.compute, dy.rows(begin[e], rows), x.rows(begin[e], rows), dwe);
  }
}

}  // namespace

void register_grouped_matmul(KernelTable& table) {
  table.grouped_matmul = grouped_matmul;
  table.grouped_matmul_weight_gradient = weight_gradient;
}

}  // namespace lathe::ref
