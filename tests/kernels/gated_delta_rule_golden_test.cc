// The fixture gated_delta_rule.safetensors: recurrences of an independent implementation in f64, through
// delta_gates for the forms of q and k before their norm.
#include <cmath>
#include <set>

#include "lathe/kernels/delta_gates.h"

#include "support/golden_tensors.h"

#include "kernels/delta_rule_case.h"

namespace lathe::test {
namespace {

using Tensors = std::map<std::string, HostArray>;

std::vector<int32_t> to_integers(const HostArray& array) {
  return {array.values.begin(), array.values.end()};
}

std::vector<std::string> case_names(const Tensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, values] : tensors) names.insert(name.substr(0, name.find('.')));
  return {names.begin(), names.end()};
}

HostArray with_row(const HostArray& state) {
  return {{1, state.shape[0], state.shape[1], state.shape[2]}, state.values};
}

DeltaCase golden_case(const Tensors& tensors, const std::string& name, int64_t chunk) {
  const auto of = [&](const char* what) -> const HostArray& { return tensors.at(name + "." + what); };
  DeltaCase c;
  c.q = of("q");
  c.k = of("k");
  c.v = of("v");
  c.beta = of("beta");
  c.g = of("g");
  c.d_o = of("d_out");
  c.segments = to_integers(of("segment_ids"));
  c.initial_state = with_row(of("initial_state"));
  c.initial_segment = {c.segments[0]};
  c.d_final_state = with_row(of("d_final_state"));
  c.params = {1, c.q.shape[0], c.q.shape[1], c.v.shape[1], c.q.shape[2], c.v.shape[2], chunk};
  return c;
}

void expect_golden(const Tensors& tensors, const std::string& name, const Named& actual, double tolerance) {
  const std::map<std::string, std::string> pairs{{"out", "o"},  {"final_state", "final_state"},
                                                 {"d_q", "dq"}, {"d_k", "dk"},
                                                 {"d_v", "dv"}, {"d_beta", "dbeta"},
                                                 {"d_g", "dg"}, {"d_initial_state", "d_initial_state"}};
  for (const auto& [golden, ours] : pairs) {
    expect_near(actual.at(ours), tensors.at(name + "." + golden), tolerance, name + " " + golden);
  }
}

TEST(GatedDeltaRuleGolden, ValuesStatesAndGradients) {
  const Tensors tensors = read_golden_tensors(std::string(LATHE_GOLDENS) + "/gated_delta_rule.safetensors");
  const std::vector<std::string> names = case_names(tensors);
  ASSERT_EQ(names.size(), 8U);
  for (const std::string& name : names) {
    for (const int64_t chunk : {16, 64, 128}) {
      const DeltaCase c = golden_case(tensors, name, chunk);
      expect_golden(tensors, name, run_delta(make_ref_device(), c), 1e-12);
      for (const Isa isa : isas_at_hand()) {
        SCOPED_TRACE(fmt::format("{} chunk {}", isa_name(isa), chunk));
        // Inputs are rounded to f32 here (6e-8), and the norms of the results are dominated by few tokens.
        expect_golden(tensors, name, run_delta(make_cpu_device(isa), c), 1e-5);
      }
    }
  }
}

// q and k by delta_gates from q_raw and k_raw, and their gradients back through it.
void check_norms(const Device& device, const Tensors& tensors, const std::string& name, double tolerance) {
  const auto of = [&](const char* what) -> const HostArray& { return tensors.at(name + "." + what); };
  const HostArray& v = of("v");
  const DeltaGatesParams p{v.shape[0], of("q").shape[1], v.shape[1], of("q").shape[2], v.shape[2]};
  const int64_t keys = p.key_heads * p.key_dim;
  const int64_t values = p.value_heads * p.value_dim;
  HostArray mixed({p.tokens, 2 * keys + values});
  HostArray expected(mixed.shape);
  const auto segments = to_integers(of("segment_ids"));
  for (int64_t t = 0; t < p.tokens; ++t) {
    const auto join = [&](HostArray& to, const char* q, const char* k, const char* value) {
      double* at = &to[t * mixed.shape[1]];
      at = std::copy_n(of(q).values.begin() + t * keys, keys, at);
      at = std::copy_n(of(k).values.begin() + t * keys, keys, at);
      std::copy_n(of(value).values.begin() + t * values, values, at);
    };
    join(mixed, "q_raw", "k_raw", "v");
    join(expected, "d_q_raw", "d_k_raw", "d_v");
  }
  const Tensor mixed_on = to_device(device, mixed);
  const Tensor ba = to_device(device, random_array({p.tokens, 2 * p.value_heads}, 1));
  const Tensor a_log = to_device(device, random_array({p.value_heads}, 2));
  const Tensor dt_bias = to_device(device, random_array({p.value_heads}, 3));
  const Tensor segments_on = to_device(device, integer_array({p.tokens}, segments), DType::kI32);
  const Tensor q = poisoned(device, of("q").shape);
  const Tensor k = poisoned(device, of("k").shape);
  const Tensor v_out = poisoned(device, v.shape);
  const Tensor beta = poisoned(device, of("beta").shape);
  const Tensor g = poisoned(device, of("g").shape);
  device.kernels.delta_gates_forward(*device.queue, p, mixed_on, ba, a_log, dt_bias, segments_on, q, k, v_out,
                                     beta, g);
  if (std::find(segments.begin(), segments.end(), 0) == segments.end()) {
    expect_near(to_host(device, q), of("q"), tolerance, name + " q");
    expect_near(to_host(device, k), of("k"), tolerance, name + " k");
  }
  const Tensor dmixed = poisoned(device, mixed.shape);
  const Tensor dba = poisoned(device, Shape{p.tokens, 2 * p.value_heads});
  const Tensor da_log = to_device(device, HostArray(Shape{p.value_heads}));
  const Tensor ddt_bias = to_device(device, HostArray(Shape{p.value_heads}));
  device.kernels.delta_gates_backward(*device.queue, p, to_device(device, of("d_q")),
                                      to_device(device, of("d_k")), to_device(device, of("d_v")),
                                      to_device(device, of("d_beta")), to_device(device, of("d_g")), mixed_on,
                                      ba, a_log, dt_bias, segments_on, dmixed, dba, da_log, ddt_bias,
                                      device.scratch(delta_gates_backward_scratch(p), "scratch"));
  expect_near(to_host(device, dmixed), expected, tolerance, name + " gradients before the norms");
}

TEST(GatedDeltaRuleGolden, GradientsBeforeTheNorms) {
  const Tensors tensors = read_golden_tensors(std::string(LATHE_GOLDENS) + "/gated_delta_rule.safetensors");
  for (const std::string& name : case_names(tensors)) {
    check_norms(make_ref_device(), tensors, name, 1e-12);
    for (const Isa isa : isas_at_hand()) check_norms(make_cpu_device(isa), tensors, name, 1e-6);
  }
}

}  // namespace
}  // namespace lathe::test
