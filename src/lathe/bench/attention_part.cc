#include <cmath>

#include "lathe/bench/measure.h"
#include "lathe/bench/part.h"

namespace lathe {
namespace {

class AttentionPart final : public Part {
 public:
  AttentionPart(Device& device, const AttentionSizes& s)
      : device_(device),
        params_{.rows = 1,
                .q_tokens = s.tokens,
                .kv_tokens = s.tokens,
                .q_offset = 0,
                .q_heads = s.heads,
                .kv_heads = s.kv_heads,
                .head_dim = s.head_dim,
                .scale = 1 / std::sqrt(static_cast<double>(s.head_dim))},
        q_(random_tensor(device, {s.tokens, s.heads, s.head_dim}, "q")),
        k_(random_tensor(device, {s.tokens, s.kv_heads, s.head_dim}, "k")),
        v_(random_tensor(device, {s.tokens, s.kv_heads, s.head_dim}, "v")),
        d_o_(random_tensor(device, {s.tokens, s.heads, s.head_dim}, "do")),
        segments_(segment_tensor(device, s.tokens, s.segments)),
        o_(device.activation(q_.view().shape, "o")),
        dq_(device.activation(q_.view().shape, "dq")),
        dk_(device.activation(k_.view().shape, "dk")),
        dv_(device.activation(v_.view().shape, "dv")) {}

  void forward() override {
    lse_ = device_.activation({params_.q_tokens, params_.q_heads}, "lse");
    device_.kernels.attention_forward(*device_.queue, params_, q_, k_, v_, segments_, segments_, o_, lse_);
  }
  void backward() override {
    const Tensor scratch = device_.scratch(attention_backward_scratch(params_), "delta");
    device_.kernels.attention_backward(*device_.queue, params_, d_o_, q_, k_, v_, segments_, segments_, o_,
                                       lse_, dq_, dk_, dv_, scratch);
    lse_.reset();
  }
  [[nodiscard]] std::vector<std::pair<std::string, ConstView>> results() const override {
    return {{"o", o_}, {"dq", dq_}, {"dk", dk_}, {"dv", dv_}};
  }

 private:
  Device& device_;
  AttentionParams params_;
  Tensor q_, k_, v_, d_o_, segments_;
  Tensor o_, dq_, dk_, dv_, lse_;
};

}  // namespace

PartSpec attention_part(const AttentionSizes& s) {
  PartSpec spec;
  spec.name = "attention";
  spec.sizes = {{"tokens", s.tokens},
                {"heads", s.heads},
                {"kv_heads", s.kv_heads},
                {"head_dim", s.head_dim},
                {"segments", s.segments}};
  spec.make = [s](Device& device, bool small) -> std::unique_ptr<Part> {
    AttentionSizes sizes = s;
    if (small) {
      sizes.tokens = std::min<int64_t>(s.tokens, 150);
      sizes.segments = std::min<int64_t>(std::max<int64_t>(s.segments, 2), sizes.tokens);
    }
    return std::make_unique<AttentionPart>(device, sizes);
  };
  // Pairs of a query and a key that count: two products of head_dim forward, four backward (scores made again are not
  // counted). The yardstick multiplies whole squares of a segment.
  const double length = static_cast<double>(s.tokens) / static_cast<double>(s.segments);
  const double pairs = static_cast<double>(s.tokens) * (length + 1) / 2;
  spec.flops = 12 * pairs * static_cast<double>(s.heads * s.head_dim);
  const int64_t n = (s.tokens + s.segments - 1) / s.segments;
  spec.products = {{{.trans_b = true, .m = n, .n = n, .k = s.head_dim},    // scores
                    {.m = n, .n = s.head_dim, .k = n},                     // values
                    {.trans_b = true, .m = n, .n = n, .k = s.head_dim},    // dP
                    {.trans_a = true, .m = n, .n = s.head_dim, .k = n},    // dV
                    {.m = n, .n = s.head_dim, .k = n},                     // dQ
                    {.trans_a = true, .m = n, .n = s.head_dim, .k = n}}};  // dK
  return spec;
}

}  // namespace lathe
