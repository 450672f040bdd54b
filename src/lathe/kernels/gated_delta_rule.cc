#include "lathe/kernels/gated_delta_rule.h"

#include "lathe/kernels/access.h"

namespace lathe {
namespace {

constexpr const char* kOp = "gated_delta_rule";

void check_float(const char* name, ConstView view, const Shape& shape, DType dtype) {
  check_shape(kOp, name, view, shape);
  LATHE_CHECK(view.dtype == dtype, "{}: {} is {}, q is {}", kOp, name, dtype_name(view.dtype),
              dtype_name(dtype));
}

void check_size(const char* name, ConstView view, int64_t size, DType dtype) {
  LATHE_CHECK(view.size() >= size && (size == 0 || view.dtype == dtype),
              "{}: {} has {} elements of {}, needs {} of {}", kOp, name, view.size(), dtype_name(view.dtype),
              size, dtype_name(dtype));
}

void check_common(const GatedDeltaRuleParams& p, ConstView q, ConstView k, ConstView v, ConstView beta,
                  ConstView g, ConstView segments, ConstView initial_state, ConstView initial_segment) {
  const int64_t n = p.rows * p.tokens;
  LATHE_CHECK(p.chunk >= 1 && p.key_heads >= 1 && p.value_heads >= 1 && p.value_heads % p.key_heads == 0,
              "{}: chunk {}, {} key heads, {} value heads", kOp, p.chunk, p.key_heads, p.value_heads);
  LATHE_CHECK(q.dtype == DType::kF32 || q.dtype == DType::kF64, "{}: q is {}", kOp, dtype_name(q.dtype));
  check_float("q", q, {n, p.key_heads, p.key_dim}, q.dtype);
  check_float("k", k, {n, p.key_heads, p.key_dim}, q.dtype);
  check_float("v", v, {n, p.value_heads, p.value_dim}, q.dtype);
  check_float("beta", beta, {n, p.value_heads}, q.dtype);
  check_float("g", g, {n, p.value_heads}, q.dtype);
  check_float("segments", segments, {n}, DType::kI32);
  LATHE_CHECK(initial_state.empty() == initial_segment.empty(), "{}: a state without its segment", kOp);
  if (initial_state.empty()) return;
  check_float("initial_state", initial_state, {p.rows, p.value_heads, p.key_dim, p.value_dim}, q.dtype);
  check_float("initial_segment", initial_segment, {p.rows}, DType::kI32);
}

int64_t chunk_states_size(const GatedDeltaRuleParams& p) {
  return p.rows * p.chunks() * p.value_heads * p.key_dim * p.value_dim;
}

}  // namespace

void check_gated_delta_rule_forward(const GatedDeltaRuleParams& p, ConstView q, ConstView k, ConstView v,
                                    ConstView beta, ConstView g, ConstView segments, ConstView initial_state,
                                    ConstView initial_segment, ConstView o, ConstView final_state,
                                    ConstView chunk_states) {
  check_common(p, q, k, v, beta, g, segments, initial_state, initial_segment);
  check_float("o", o, v.shape, q.dtype);
  if (!final_state.empty()) {
    check_float("final_state", final_state, {p.rows, p.value_heads, p.key_dim, p.value_dim}, q.dtype);
  }
  if (!chunk_states.empty()) check_size("chunk_states", chunk_states, chunk_states_size(p), q.dtype);
}

void check_gated_delta_rule_backward(const GatedDeltaRuleParams& p, ConstView d_o, ConstView d_final_state,
                                     ConstView q, ConstView k, ConstView v, ConstView beta, ConstView g,
                                     ConstView segments, ConstView initial_state, ConstView initial_segment,
                                     ConstView chunk_states, ConstView dq, ConstView dk, ConstView dv,
                                     ConstView dbeta, ConstView dg, ConstView d_initial_state,
                                     ConstView scratch) {
  check_common(p, q, k, v, beta, g, segments, initial_state, initial_segment);
  check_float("d_o", d_o, v.shape, q.dtype);
  check_size("chunk_states", chunk_states, chunk_states_size(p), q.dtype);
  check_float("dq", dq, q.shape, q.dtype);
  check_float("dk", dk, k.shape, q.dtype);
  check_float("dv", dv, v.shape, q.dtype);
  check_float("dbeta", dbeta, beta.shape, q.dtype);
  check_float("dg", dg, g.shape, q.dtype);
  const Shape state{p.rows, p.value_heads, p.key_dim, p.value_dim};
  if (!d_final_state.empty()) check_float("d_final_state", d_final_state, state, q.dtype);
  if (!d_initial_state.empty()) check_float("d_initial_state", d_initial_state, state, q.dtype);
  check_size("scratch", scratch, gated_delta_rule_backward_scratch(p), q.dtype);
}

void check_gated_delta_rule_tiles(const GatedDeltaRuleParams& p) {
  constexpr int64_t kVectors = 16;        // per chunk, counted in floats
  constexpr int64_t kRounding = 64 * 32;  // each tile is aligned
  const int64_t floats =
      p.chunk * (6 * p.key_dim + 4 * p.value_dim + 6 * p.chunk + kVectors) + p.key_dim * p.value_dim;
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float)) + kRounding;
  LATHE_CHECK(bytes <= Queue::kThreadWorkspaceBytes,
              "{}: chunk {} with dimensions {} and {} needs {} bytes per thread", kOp, p.chunk, p.key_dim,
              p.value_dim, bytes);
}

}  // namespace lathe
