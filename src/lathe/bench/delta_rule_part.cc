#include <cmath>

#include "lathe/bench/measure.h"
#include "lathe/bench/part.h"

namespace lathe {
namespace {

class DeltaRulePart final : public Part {
 public:
  DeltaRulePart(Device& device, const DeltaRuleSizes& s)
      : device_(device),
        params_{.rows = 1,
                .tokens = s.tokens,
                .key_heads = s.key_heads,
                .value_heads = s.value_heads,
                .key_dim = s.key_dim,
                .value_dim = s.value_dim,
                .chunk = s.chunk},
        // Keys of about unit length, as after their normalisation.
        q_(random_tensor(device, {s.tokens, s.key_heads, s.key_dim}, "q", unit(s.key_dim))),
        k_(random_tensor(device, {s.tokens, s.key_heads, s.key_dim}, "k", unit(s.key_dim))),
        v_(random_tensor(device, {s.tokens, s.value_heads, s.value_dim}, "v")),
        beta_(uniform_tensor(device, {s.tokens, s.value_heads}, "beta", 0.1, 0.9)),
        g_(uniform_tensor(device, {s.tokens, s.value_heads}, "g", -0.5, -0.001)),
        d_o_(random_tensor(device, {s.tokens, s.value_heads, s.value_dim}, "do")),
        segments_(segment_tensor(device, s.tokens, s.segments)),
        o_(device.activation(v_.view().shape, "o")),
        dq_(device.activation(q_.view().shape, "dq")),
        dk_(device.activation(k_.view().shape, "dk")),
        dv_(device.activation(v_.view().shape, "dv")),
        dbeta_(device.activation(beta_.view().shape, "dbeta")),
        dg_(device.activation(g_.view().shape, "dg")),
        entering_(segment_tensor(device, 1, 1)),
        transition_(device.activation({1, s.value_heads, s.key_dim, s.key_dim}, "transition")),
        state_(device.activation({1, s.value_heads, s.key_dim, s.value_dim}, "state")),
        d_state_(device.activation(state_.view().shape, "dstate")) {}

  void forward() override {
    states_ = device_.activation({params_.chunks(), params_.value_heads, params_.key_dim, params_.value_dim},
                                 "chunk_states");
    device_.kernels.gated_delta_rule_forward(*device_.queue, params_, q_, k_, v_, beta_, g_, segments_, {},
                                             {}, o_, {}, states_);
  }
  void backward() override {
    const Tensor scratch =
        device_.scratch(gated_delta_rule_backward_scratch(params_), "dq and dk by value head");
    device_.kernels.gated_delta_rule_backward(*device_.queue, params_, d_o_, {}, q_, k_, v_, beta_, g_,
                                              segments_, {}, {}, states_, dq_, dk_, dv_, dbeta_, dg_, {},
                                              scratch);
    states_.reset();
  }
  // What a shard of a row tells the others of its effect on the state: the first rank, those in the middle, and all but
  // the first in backward.
  [[nodiscard]] std::vector<Extra> extras() override {
    return {{"state sweep", [this] { sweep({}); }},
            {"widened state sweep", [this] { sweep(transition_); }},
            {"adjoint sweep", [this] {
               device_.kernels.gated_delta_rule_adjoint_summary(*device_.queue, params_, d_o_, q_, k_, beta_,
                                                                g_, segments_, entering_, d_state_);
             }}};
  }
  [[nodiscard]] std::vector<std::pair<std::string, ConstView>> results() const override {
    return {{"o", o_},
            {"dq", dq_},
            {"dk", dk_},
            {"dv", dv_},
            {"dbeta", dbeta_},
            {"dg", dg_},
            {"transition", transition_},
            {"state", state_},
            {"dstate", d_state_}};
  }

 private:
  void sweep(View transition) {
    device_.kernels.gated_delta_rule_summary(*device_.queue, params_, k_, v_, beta_, g_, segments_, entering_,
                                             transition, state_);
  }
  static double unit(int64_t dim) { return 1 / std::sqrt(static_cast<double>(dim)); }

  Device& device_;
  GatedDeltaRuleParams params_;
  Tensor q_, k_, v_, beta_, g_, d_o_, segments_;
  Tensor o_, dq_, dk_, dv_, dbeta_, dg_, states_;
  Tensor entering_, transition_, state_, d_state_;
};

}  // namespace

PartSpec delta_rule_part(const DeltaRuleSizes& s) {
  PartSpec spec;
  spec.name = "gdn";
  spec.sizes = {{"tokens", s.tokens},    {"key_heads", s.key_heads}, {"value_heads", s.value_heads},
                {"key_dim", s.key_dim},  {"value_dim", s.value_dim}, {"chunk", s.chunk},
                {"segments", s.segments}};
  spec.make = [s](Device& device, bool small) -> std::unique_ptr<Part> {
    DeltaRuleSizes sizes = s;
    if (small) {
      sizes.tokens = std::min<int64_t>(s.tokens, 2 * s.chunk + 7);
      sizes.segments = std::min<int64_t>(std::max<int64_t>(s.segments, 2), sizes.tokens);
    }
    return std::make_unique<DeltaRulePart>(device, sizes);
  };
  // The token recurrence: S^T k, k e^T, S^T q, backward twice that; what the chunked form adds is not counted. The yardstick
  // is nine products of all tokens with a state, for as many heads.
  spec.flops = 18.0 * static_cast<double>(s.tokens * s.value_heads * s.key_dim * s.value_dim);
  spec.products = {std::vector<LibraryGemm::Problem>(9, {.m = s.tokens, .n = s.value_dim, .k = s.key_dim})};
  return spec;
}

}  // namespace lathe
