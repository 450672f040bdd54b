#include "lathe/kernels/gated_delta_rule_summary.h"

#include "lathe/kernels/access.h"

namespace lathe {
namespace {

constexpr const char* kOp = "gated_delta_rule_summary";

void check(const char* name, ConstView view, const Shape& shape, DType dtype) {
  check_shape(kOp, name, view, shape);
  LATHE_CHECK(view.dtype == dtype, "{}: {} is {}, not {}", kOp, name, dtype_name(view.dtype),
              dtype_name(dtype));
}

void check_common(const GatedDeltaRuleParams& p, ConstView k, ConstView beta, ConstView g, ConstView segments,
                  ConstView entering_segment) {
  const int64_t n = p.rows * p.tokens;
  LATHE_CHECK(p.chunk >= 1 && p.key_heads >= 1 && p.value_heads >= 1 && p.value_heads % p.key_heads == 0,
              "{}: chunk {}, {} key heads, {} value heads", kOp, p.chunk, p.key_heads, p.value_heads);
  LATHE_CHECK(k.dtype == DType::kF32 || k.dtype == DType::kF64, "{}: k is {}", kOp, dtype_name(k.dtype));
  check("k", k, {n, p.key_heads, p.key_dim}, k.dtype);
  check("beta", beta, {n, p.value_heads}, k.dtype);
  check("g", g, {n, p.value_heads}, k.dtype);
  check("segments", segments, {n}, DType::kI32);
  check("entering_segment", entering_segment, {p.rows}, DType::kI32);
}

}  // namespace

void check_gated_delta_rule_summary(const GatedDeltaRuleParams& p, ConstView k, ConstView v, ConstView beta,
                                    ConstView g, ConstView segments, ConstView entering_segment,
                                    ConstView transition, ConstView state) {
  check_common(p, k, beta, g, segments, entering_segment);
  check("v", v, {p.rows * p.tokens, p.value_heads, p.value_dim}, k.dtype);
  if (!transition.empty())
    check("transition", transition, {p.rows, p.value_heads, p.key_dim, p.key_dim}, k.dtype);
  check("state", state, {p.rows, p.value_heads, p.key_dim, p.value_dim}, k.dtype);
}

void check_gated_delta_rule_adjoint_summary(const GatedDeltaRuleParams& p, ConstView d_o, ConstView q,
                                            ConstView k, ConstView beta, ConstView g, ConstView segments,
                                            ConstView entering_segment, ConstView d_state) {
  check_common(p, k, beta, g, segments, entering_segment);
  check("q", q, k.shape, k.dtype);
  check("d_o", d_o, {p.rows * p.tokens, p.value_heads, p.value_dim}, k.dtype);
  check("d_state", d_state, {p.rows, p.value_heads, p.key_dim, p.value_dim}, k.dtype);
}

void check_gated_delta_rule_fold(const GatedDeltaRuleFoldParams& p, ConstView transitions, ConstView states,
                                 ConstView result) {
  const int64_t heads = p.rows * p.value_heads;
  check("result", result, {p.rows, p.value_heads, p.key_dim, p.value_dim}, result.dtype);
  if (p.count == 0) return;
  check("states", states, {p.count, heads, p.key_dim, p.value_dim}, result.dtype);
  if (p.count == 1 && transitions.empty()) return;
  check("transitions", transitions, {p.count, heads, p.key_dim, p.key_dim}, result.dtype);
}

DeltaSpan last_segment_span(const int32_t* segments, int64_t tokens, int32_t entering) {
  int64_t end = tokens;
  while (end > 0 && segments[end - 1] == 0) --end;
  if (end == 0) return {0, 0, true};
  const int32_t last = segments[end - 1];
  int64_t begin = end;
  for (int64_t t = end; t-- > 0 && (segments[t] == last || segments[t] == 0);) {
    if (segments[t] == last) begin = t;
  }
  // Another segment before its first token ends what entered; otherwise only padding is before it.
  bool alone = true;
  for (int64_t t = 0; t < begin; ++t) alone = alone && segments[t] == 0;
  return {begin, end, alone && last == entering};
}

DeltaSpan first_segment_span(const int32_t* segments, int64_t tokens, int32_t entering) {
  int64_t begin = 0;
  while (begin < tokens && segments[begin] == 0) ++begin;
  if (begin == tokens) return {0, 0, true};
  if (segments[begin] != entering) return {};
  int64_t end = begin;
  for (int64_t t = begin; t < tokens && (segments[t] == entering || segments[t] == 0); ++t) {
    if (segments[t] == entering) end = t + 1;
  }
  return {begin, end, true};
}

}  // namespace lathe
