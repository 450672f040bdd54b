#include "lathe/kernels/qk_norm_rope.h"

#include <cmath>

#include <fmt/format.h>

#include "kernels/parity.h"

namespace lathe::test {
namespace {

constexpr int64_t kQueryHeads = 3;
constexpr int64_t kKeyHeads = 2;

struct Inputs {
  HostArray q_proj;
  HostArray k_proj;
  HostArray q_norm;
  HostArray k_norm;
};

int64_t query_width(const QkNormRopeParams& params) {
  return params.has_gate ? 2 * params.head_dim : params.head_dim;
}

Inputs random_inputs(const QkNormRopeParams& params, int64_t tokens) {
  return {random_array(Shape{tokens, kQueryHeads, query_width(params)}, 1),
          random_array(Shape{tokens, kKeyHeads, params.head_dim}, 2), random_array(Shape{params.head_dim}, 3),
          random_array(Shape{params.head_dim}, 4)};
}

HostArray some_positions(int64_t tokens) {
  HostArray out(Shape{tokens});
  for (int64_t t = 0; t < tokens; ++t) out[t] = static_cast<double>(t % 3 == 2 ? 5000 + 7 * t : t);
  return out;
}

// On the device: the inputs, and what forward makes of them.
struct Call {
  Tensor q_proj, k_proj, positions, q_norm, k_norm, q, k, q_rstd, k_rstd;
};

Call forward_call(const Device& d, const QkNormRopeParams& params, const Inputs& in,
                  const HostArray& positions) {
  const int64_t tokens = positions.size();
  Call call;
  call.q_proj = to_device(d, in.q_proj);
  call.k_proj = to_device(d, in.k_proj);
  call.positions = to_device(d, positions, DType::kI32);
  call.q = poisoned(d, Shape{tokens, kQueryHeads, params.head_dim});
  call.k = poisoned(d, Shape{tokens, kKeyHeads, params.head_dim});
  if (params.has_norm) {
    call.q_norm = to_device(d, in.q_norm);
    call.k_norm = to_device(d, in.k_norm);
    call.q_rstd = poisoned(d, Shape{tokens, kQueryHeads});
    call.k_rstd = poisoned(d, Shape{tokens, kKeyHeads});
  }
  d.kernels.qk_norm_rope_forward(*d.queue, params, call.q_proj, call.k_proj, call.positions, call.q_norm,
                                 call.k_norm, call.q, call.k, call.q_rstd, call.k_rstd);
  return call;
}

std::vector<HostArray> forward(const Device& d, const QkNormRopeParams& params, const Inputs& in,
                               const HostArray& positions) {
  const Call call = forward_call(d, params, in, positions);
  std::vector<HostArray> out{to_host(d, call.q), to_host(d, call.k)};
  if (params.has_norm) {
    out.push_back(to_host(d, call.q_rstd));
    out.push_back(to_host(d, call.k_rstd));
  }
  return out;
}

// Returns dq_proj, dk_proj and, with norm, dq_norm and dk_norm, which start at `start`. The gate half of
// dq_proj starts (and has to stay) zero.
std::vector<HostArray> backward(const Device& d, const QkNormRopeParams& params, const Inputs& in,
                                const HostArray& positions, const HostArray& dq, const HostArray& dk,
                                double start, bool want_norms = true) {
  const Call call = forward_call(d, params, in, positions);
  HostArray dq_start(in.q_proj.shape);
  const int64_t dim = params.head_dim;
  for (int64_t i = 0; i < dq_start.size(); ++i) {
    dq_start[i] = params.has_gate && i / dim % 2 == 1 ? 0 : std::nan("");
  }
  const Tensor dq_proj = to_device(d, dq_start);
  const Tensor dk_proj = poisoned(d, in.k_proj.shape);
  const bool norms = params.has_norm && want_norms;
  const HostArray dw_start(Shape{dim}, std::vector<double>(static_cast<size_t>(dim), start));
  const Tensor dq_norm = norms ? to_device(d, dw_start) : Tensor();
  const Tensor dk_norm = norms ? to_device(d, dw_start) : Tensor();
  const Tensor scratch =
      norms ? d.scratch(qk_norm_rope_backward_scratch(positions.size(), dim), "scratch") : Tensor();
  d.kernels.qk_norm_rope_backward(*d.queue, params, to_device(d, dq), to_device(d, dk), call.q_proj,
                                  call.k_proj, call.positions, call.q_norm, call.k_norm, call.q_rstd,
                                  call.k_rstd, dq_proj, dk_proj, dq_norm, dk_norm, scratch);
  std::vector<HostArray> out{to_host(d, dq_proj), to_host(d, dk_proj)};
  if (norms) {
    out.push_back(to_host(d, dq_norm));
    out.push_back(to_host(d, dk_norm));
  }
  return out;
}

std::vector<QkNormRopeParams> variants(int64_t head_dim, int64_t rotary_dim) {
  std::vector<QkNormRopeParams> out;
  for (const bool gate : {false, true}) {
    for (const bool norm : {false, true}) {
      out.push_back({.head_dim = head_dim,
                     .rotary_dim = rotary_dim,
                     .theta = 1e4,
                     .has_gate = gate,
                     .has_norm = norm,
                     .norm_offset = gate ? 1.0 : 0.0,
                     .norm_eps = 1e-4});
    }
  }
  return out;
}

TEST(QkNormRope, Gradients) {
  const Device device = make_ref_device();
  const HostArray positions = some_positions(4);
  for (const int64_t rotary_dim : {0, 4, 6}) {
    for (const QkNormRopeParams& params : variants(6, rotary_dim)) {
      const Inputs in = random_inputs(params, 4);
      std::vector<std::string> names{"q_proj", "k_proj"};
      std::vector<HostArray> inputs{in.q_proj, in.k_proj};
      if (params.has_norm) {
        names.insert(names.end(), {"q_norm", "k_norm"});
        inputs.insert(inputs.end(), {in.q_norm, in.k_norm});
      }
      const auto unpack = [&](const std::vector<HostArray>& values) {
        return Inputs{values[0], values[1], params.has_norm ? values[2] : HostArray(),
                      params.has_norm ? values[3] : HostArray()};
      };
      check_gradients(
          names, inputs,
          [&](const auto& values) {
            auto out = forward(device, params, unpack(values), positions);
            out.resize(2);
            return out;
          },
          [&](const auto& values, const auto& d) {
            return backward(device, params, unpack(values), positions, d[0], d[1], 0);
          });
    }
  }
}

TEST(QkNormRope, RotatesPairsHalfTheRotaryDimApart) {
  const QkNormRopeParams params{.head_dim = 5, .rotary_dim = 4, .theta = 100};
  Inputs in{HostArray(Shape{1, kQueryHeads, 5}), HostArray(Shape{1, kKeyHeads, 5}), {}, {}};
  for (int64_t c = 0; c < 5; ++c)
    in.k_proj[5 + c] = static_cast<double>(c + 1);  // the second key head: 1 2 3 4 5
  const HostArray k = forward(make_ref_device(), params, in, integer_array(Shape{1}, {7}))[1];
  const double c0 = std::cos(7.0);
  const double s0 = std::sin(7.0);
  const double c1 = std::cos(0.7);  // 7 * 100^(-2/4)
  const double s1 = std::sin(0.7);
  const HostArray expected(Shape{1, kKeyHeads, 5}, {0, 0, 0, 0, 0, 1 * c0 - 3 * s0, 2 * c1 - 4 * s1,
                                                    3 * c0 + 1 * s0, 4 * c1 + 2 * s1, 5});
  expect_near(k, expected, 1e-14, "k");
}

TEST(QkNormRope, FastPathAgrees) {
  for (const int64_t tokens : {0, 1, 2, 65, 300}) {
    for (const auto& [dim, rotary] :
         {std::pair<int64_t, int64_t>{2, 2}, {7, 4}, {16, 16}, {33, 14}, {64, 64}, {130, 66}, {256, 64}}) {
      for (const QkNormRopeParams& params : variants(dim, rotary)) {
        const Inputs in = random_inputs(params, tokens);
        const HostArray positions = some_positions(tokens);
        const HostArray dq = random_array(Shape{tokens, kQueryHeads, dim}, 5);
        const HostArray dk = random_array(Shape{tokens, kKeyHeads, dim}, 6);
        const std::string label = fmt::format("{} x {} of {}, gate {}, norm {}", tokens, rotary, dim,
                                              params.has_gate, params.has_norm);
        expect_parity(label + " forward", [&](const Device& d) { return forward(d, params, in, positions); });
        expect_parity(label + " backward",
                      [&](const Device& d) { return backward(d, params, in, positions, dq, dk, 0.5); });
      }
    }
  }
}

// The angle of a distant position needs more digits than f32 has.
TEST(QkNormRope, DistantPositionsKeepTheirAngle) {
  const QkNormRopeParams params{.head_dim = 64, .rotary_dim = 64, .theta = 1e6};
  const Inputs in = random_inputs(params, 4);
  const HostArray positions = integer_array(Shape{4}, {65535, 262143, 1000003, 16777217});
  expect_parity("forward", [&](const Device& d) { return forward(d, params, in, positions); });
}

TEST(QkNormRope, NormGradientsMayBeAbsent) {
  const QkNormRopeParams params = variants(24, 8).back();
  const Inputs in = random_inputs(params, 150);
  const HostArray positions = some_positions(150);
  const HostArray dq = random_array(Shape{150, kQueryHeads, 24}, 5);
  const HostArray dk = random_array(Shape{150, kKeyHeads, 24}, 6);
  const auto check = [&](const Device& d) {
    const auto with = backward(d, params, in, positions, dq, dk, 0);
    const auto without = backward(d, params, in, positions, dq, dk, 0, false);
    expect_same(without[0], with[0], "dq_proj");
    expect_same(without[1], with[1], "dk_proj");
  };
  check(make_ref_device());
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa));
}

}  // namespace
}  // namespace lathe::test
