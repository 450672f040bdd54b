#include "kernels/delta_rule_case.h"

#include <cmath>
#include <limits>

namespace lathe::test {
namespace {

void round_to_f32(HostArray& array) {
  for (double& x : array.values) x = static_cast<double>(static_cast<float>(x));
}

void normalise_rows(HostArray& array, int64_t width, double scale) {
  for (int64_t at = 0; at < array.size(); at += width) {
    double squares = 1e-6;
    for (int64_t i = 0; i < width; ++i) squares += array[at + i] * array[at + i];
    for (int64_t i = 0; i < width; ++i) array[at + i] *= scale / std::sqrt(squares);
  }
}

void poison_padding(HostArray& array, const std::vector<int32_t>& segments) {
  const int64_t width = array.size() / std::max<int64_t>(1, static_cast<int64_t>(segments.size()));
  for (size_t t = 0; t < segments.size(); ++t) {
    if (segments[t] != 0) continue;
    for (int64_t i = 0; i < width; ++i) {
      array[static_cast<int64_t>(t) * width + i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

Shape state_shape(const GatedDeltaRuleParams& p) {
  return {p.rows, p.value_heads, p.key_dim, p.value_dim};
}

// The inputs of a case on a device, and what forward leaves.
struct OnDevice {
  OnDevice(const Device& device, const DeltaCase& c)
      : q(to_device(device, c.q)),
        k(to_device(device, c.k)),
        v(to_device(device, c.v)),
        beta(to_device(device, c.beta)),
        g(to_device(device, c.g)),
        segments(to_device(device, integer_array({static_cast<int64_t>(c.segments.size())}, c.segments),
                           DType::kI32)),
        o(poisoned(device, c.v.shape)),
        final_state(poisoned(device, state_shape(c.params))),
        chunk_states(poisoned(device, Shape{c.params.rows * c.params.chunks() * c.params.value_heads *
                                            c.params.key_dim * c.params.value_dim})) {
    if (c.initial_state.shape.rank() == 0) return;
    initial_state = to_device(device, c.initial_state);
    initial_segment = to_device(device, integer_array({c.params.rows}, c.initial_segment), DType::kI32);
  }

  Tensor q, k, v, beta, g, segments, initial_state, initial_segment, o, final_state, chunk_states;
};

void forward(const Device& device, const DeltaCase& c, const OnDevice& x) {
  device.kernels.gated_delta_rule_forward(*device.queue, c.params, x.q, x.k, x.v, x.beta, x.g, x.segments,
                                          x.initial_state, x.initial_segment, x.o, x.final_state,
                                          x.chunk_states);
}

Named forward_outputs(const Device& device, const OnDevice& x) {
  return {{"o", to_host(device, x.o)},
          {"final_state", to_host(device, x.final_state)},
          {"chunk_states", to_host(device, x.chunk_states)}};
}

}  // namespace

DeltaCase random_delta_case(const GatedDeltaRuleParams& p, std::vector<int32_t> segments, uint64_t seed,
                            const DeltaKind& kind) {
  const int64_t n = p.rows * p.tokens;
  DeltaCase c;
  c.params = p;
  c.q = random_array({n, p.key_heads, p.key_dim}, seed);
  c.k = random_array({n, p.key_heads, p.key_dim}, seed + 1);
  const HostArray common = random_array({p.key_heads, p.key_dim}, seed + 2);
  for (int64_t i = 0; i < c.k.size(); ++i) {
    c.k[i] = std::sqrt(1 - kind.alike) * c.k[i] + std::sqrt(kind.alike) * common[i % common.size()];
  }
  normalise_rows(c.q, p.key_dim, 1 / std::sqrt(static_cast<double>(p.key_dim)));
  normalise_rows(c.k, p.key_dim, 1);
  c.v = random_array({n, p.value_heads, p.value_dim}, seed + 3);
  c.beta = random_array({n, p.value_heads}, seed + 4);
  c.g = uniform_array({n, p.value_heads}, seed + 5, kind.slowest, kind.fastest);
  for (double& x : c.beta.values) x = 1 / (1 + std::exp(-x - kind.beta_shift));
  for (double& x : c.g.values) x = -std::exp(x);
  c.d_o = random_array(c.v.shape, seed + 6);
  c.d_final_state = random_array(state_shape(p), seed + 7);
  for (HostArray* array : {&c.q, &c.k, &c.v, &c.beta, &c.g, &c.d_o}) {
    round_to_f32(*array);
    poison_padding(*array, segments);
  }
  round_to_f32(c.d_final_state);
  c.segments = std::move(segments);
  return c;
}

void carry_state(DeltaCase& c, uint64_t seed) {
  c.initial_state = random_array(state_shape(c.params), seed);
  round_to_f32(c.initial_state);
  c.initial_segment.assign(static_cast<size_t>(c.params.rows), 0);
  for (int64_t row = 0; row < c.params.rows; ++row) {
    int32_t& first = c.initial_segment[static_cast<size_t>(row)];
    for (int64_t t = 0; t < c.params.tokens && first == 0; ++t) {
      first = c.segments[static_cast<size_t>(row * c.params.tokens + t)];
    }
  }
}

Named run_delta_forward(const Device& device, const DeltaCase& c) {
  const OnDevice x(device, c);
  forward(device, c, x);
  return forward_outputs(device, x);
}

Named run_delta(const Device& device, const DeltaCase& c) {
  const OnDevice x(device, c);
  forward(device, c, x);
  const Tensor d_o = to_device(device, c.d_o);
  Tensor d_final;
  if (c.d_final_state.shape.rank() != 0) d_final = to_device(device, c.d_final_state);
  const Tensor dq = poisoned(device, c.q.shape);
  const Tensor dk = poisoned(device, c.k.shape);
  const Tensor dv = poisoned(device, c.v.shape);
  const Tensor dbeta = poisoned(device, c.beta.shape);
  const Tensor dg = poisoned(device, c.g.shape);
  const Tensor d_initial = poisoned(device, state_shape(c.params));
  const Tensor scratch = device.scratch(gated_delta_rule_backward_scratch(c.params), "scratch");
  device.kernels.gated_delta_rule_backward(*device.queue, c.params, d_o, d_final, x.q, x.k, x.v, x.beta, x.g,
                                           x.segments, x.initial_state, x.initial_segment, x.chunk_states, dq,
                                           dk, dv, dbeta, dg, d_initial, scratch);
  Named out = forward_outputs(device, x);
  out["dq"] = to_host(device, dq);
  out["dk"] = to_host(device, dk);
  out["dv"] = to_host(device, dv);
  out["dbeta"] = to_host(device, dbeta);
  out["dg"] = to_host(device, dg);
  out["d_initial_state"] = to_host(device, d_initial);
  return out;
}

HostArray slice_rows(const HostArray& array, int64_t begin, int64_t end) {
  Shape shape{end - begin};
  for (int i = 1; i < array.shape.rank(); ++i) shape.append(array.shape[i]);
  const int64_t width = array.size() / array.shape[0];
  return {shape, {array.values.begin() + begin * width, array.values.begin() + end * width}};
}

DeltaCase slice_tokens(const DeltaCase& c, int64_t begin, int64_t end) {
  DeltaCase out;
  out.params = c.params;
  out.params.tokens = end - begin;
  out.segments.assign(c.segments.begin() + begin, c.segments.begin() + end);
  out.q = slice_rows(c.q, begin, end);
  out.k = slice_rows(c.k, begin, end);
  out.v = slice_rows(c.v, begin, end);
  out.beta = slice_rows(c.beta, begin, end);
  out.g = slice_rows(c.g, begin, end);
  out.d_o = slice_rows(c.d_o, begin, end);
  return out;
}

}  // namespace lathe::test
