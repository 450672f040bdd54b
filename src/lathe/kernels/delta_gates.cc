#include "lathe/kernels/delta_gates.h"

#include "lathe/kernels/access.h"

namespace lathe {
namespace {

constexpr const char* kOp = "delta_gates";

void check_float(const char* name, ConstView view, const Shape& shape, DType dtype) {
  check_shape(kOp, name, view, shape);
  LATHE_CHECK(view.dtype == dtype, "{}: {} is {}, expected {}", kOp, name, dtype_name(view.dtype),
              dtype_name(dtype));
}

void check_inputs(const DeltaGatesParams& p, ConstView mixed, ConstView ba, ConstView a_log,
                  ConstView dt_bias, ConstView segments) {
  LATHE_CHECK(mixed.dtype == DType::kF32 || mixed.dtype == DType::kF64, "{}: mixed is {}", kOp,
              dtype_name(mixed.dtype));
  check_float("mixed", mixed, {p.tokens, 2 * p.key_heads * p.key_dim + p.value_heads * p.value_dim},
              mixed.dtype);
  check_float("ba", ba, {p.tokens, 2 * p.value_heads}, mixed.dtype);
  check_float("a_log", a_log, {p.value_heads}, mixed.dtype);
  check_float("dt_bias", dt_bias, {p.value_heads}, mixed.dtype);
  check_float("segments", segments, {p.tokens}, DType::kI32);
}

// q, k, v, beta, g or their gradients.
void check_outputs(const DeltaGatesParams& p, ConstView q, ConstView k, ConstView v, ConstView beta,
                   ConstView g, DType dtype) {
  check_float("q", q, {p.tokens, p.key_heads, p.key_dim}, dtype);
  check_float("k", k, {p.tokens, p.key_heads, p.key_dim}, dtype);
  check_float("v", v, {p.tokens, p.value_heads, p.value_dim}, dtype);
  check_float("beta", beta, {p.tokens, p.value_heads}, dtype);
  check_float("g", g, {p.tokens, p.value_heads}, dtype);
}

}  // namespace

void check_delta_gates_forward(const DeltaGatesParams& p, ConstView mixed, ConstView ba, ConstView a_log,
                               ConstView dt_bias, ConstView segments, ConstView q, ConstView k, ConstView v,
                               ConstView beta, ConstView g) {
  check_inputs(p, mixed, ba, a_log, dt_bias, segments);
  check_outputs(p, q, k, v, beta, g, mixed.dtype);
}

void check_delta_gates_backward(const DeltaGatesParams& p, ConstView dq, ConstView dk, ConstView dv,
                                ConstView dbeta, ConstView dg, ConstView mixed, ConstView ba, ConstView a_log,
                                ConstView dt_bias, ConstView segments, ConstView dmixed, ConstView dba,
                                ConstView da_log, ConstView ddt_bias, ConstView scratch) {
  check_inputs(p, mixed, ba, a_log, dt_bias, segments);
  check_outputs(p, dq, dk, dv, dbeta, dg, mixed.dtype);
  check_float("dmixed", dmixed, mixed.shape, mixed.dtype);
  check_float("dba", dba, ba.shape, mixed.dtype);
  if (!da_log.empty()) check_float("da_log", da_log, a_log.shape, mixed.dtype);
  if (!ddt_bias.empty()) check_float("ddt_bias", ddt_bias, dt_bias.shape, mixed.dtype);
  const int64_t size = delta_gates_backward_scratch(p);
  LATHE_CHECK(scratch.size() >= size && (size == 0 || scratch.dtype == mixed.dtype),
              "{}: scratch has {} elements of {}, needs {}", kOp, scratch.size(), dtype_name(scratch.dtype),
              size);
}

}  // namespace lathe
