#include <cmath>

#include "lathe/bench/measure.h"
#include "lathe/bench/part.h"
#include "lathe/core/rng.h"
#include "lathe/model/decoder.h"

namespace lathe {
namespace {

ModelConfig config_of(const MoeSizes& s) {
  ModelConfig config;
  config.family = "qwen3_5_moe";
  config.vocab_size = 2;
  config.hidden_size = s.dim;
  config.layers = {{MixerKind::kFullAttention, MlpKind::kMoe}};
  config.tie_word_embeddings = true;
  config.num_attention_heads = 1;
  config.num_key_value_heads = 1;
  config.head_dim = 2;
  config.rotary_dim = 2;
  config.num_experts = s.experts;
  config.num_experts_per_tok = s.top_k;
  config.moe_intermediate_size = s.width;
  config.shared_expert_intermediate_size = s.shared_width;
  return config;
}

// The trainer's own mixture of experts: router, ragged sort, experts, shared expert.
class MoePart final : public Part {
 public:
  MoePart(Device& device, const MoeSizes& sizes, DType dtype)
      : device_(device),
        config_(config_of(sizes)),
        communicator_(make_solo_communicator()),
        store_(device, *communicator_, layout_from_names(config_, HfNaming{}), {}),
        context_{device, *communicator_, store_, config_, {.compute = dtype}},
        x_(random_tensor(device, {sizes.tokens, sizes.dim}, "x")),
        dy_(random_tensor(device, {sizes.tokens, sizes.dim}, "dy")),
        segments_(segment_tensor(device, sizes.tokens, 1)),
        y_(device.activation(x_.view().shape, "y")),
        dx_(device.activation(x_.view().shape, "dx")) {
    for (size_t i = 0; device.options.name != "plan" && i < store_.parameters().size(); ++i) {
      const ParameterSpec& spec = *store_.parameters()[i].spec;
      const CounterRng rng(2, stream_of(spec.name()));
      std::vector<float> values(static_cast<size_t>(spec.shape.size()));
      const double scale = 1 / std::sqrt(static_cast<double>(spec.row_elements));
      for (size_t j = 0; j < values.size(); ++j) values[j] = static_cast<float>(scale * rng.normal(j));
      store_.write_value(i, values);
    }
    static_cast<void>(store_.target(ParameterRole::kRouter, 0));  // gradients are there from the start
  }

  void forward() override {
    const BatchView batch{.rows = 1,
                          .row_length = x_.view().dim(0),
                          .ids = {},
                          .segments = segments_,
                          .positions = {},
                          .forced_experts = {}};
    const GatheredWeights weights = store_.gather(0, Phase::kForward);
    const Tensor out = moe_forward(context_, batch, weights, x_, {}, saved_, MlpOutput::kWanted);
    device_.kernels.cast(*device_.queue, out, y_);
  }
  void backward() override {
    store_.clear_gradients();
    const GatheredWeights weights = store_.gather(0, Phase::kBackward);
    const Tensor out = moe_backward(context_, weights, 0, x_, saved_, dy_);
    device_.kernels.cast(*device_.queue, out, dx_);
    saved_ = {};
  }
  [[nodiscard]] std::vector<std::pair<std::string, ConstView>> results() const override {
    std::vector<std::pair<std::string, ConstView>> out{{"y", y_}, {"dx", dx_}};
    for (const Parameter& parameter : store_.parameters()) {
      const ParameterRole role = parameter.spec->role;
      if (role == ParameterRole::kRouter || role == ParameterRole::kExpertsGateUp ||
          role == ParameterRole::kExpertsDown || role == ParameterRole::kSharedDown) {
        out.emplace_back(parameter.spec->name() + " gradient", parameter.gradient);
      }
    }
    return out;
  }

 private:
  Device& device_;
  ModelConfig config_;
  std::unique_ptr<Communicator> communicator_;
  ParameterStore store_;
  ModelContext context_;
  Tensor x_, dy_, segments_;
  Tensor y_, dx_;
  MoeSaved saved_;
};

}  // namespace

PartSpec moe_part(const MoeSizes& s, DType dtype) {
  PartSpec spec;
  spec.name = "moe";
  spec.sizes = {{"tokens", s.tokens}, {"dim", s.dim},     {"experts", s.experts},
                {"top_k", s.top_k},   {"width", s.width}, {"shared_width", s.shared_width}};
  spec.make = [s, dtype](Device& device, bool small) -> std::unique_ptr<Part> {
    MoeSizes sizes = s;
    if (small) {
      sizes.tokens = std::min<int64_t>(s.tokens, 48);
      sizes.dim = std::min<int64_t>(s.dim, 64);
      sizes.width = std::min<int64_t>(s.width, 32);
      sizes.shared_width = std::min<int64_t>(s.shared_width, 32);
    }
    return std::make_unique<MoePart>(device, sizes, dtype);
  };
  const auto dim = static_cast<double>(s.dim);
  const auto active = static_cast<double>(s.top_k * s.width + s.shared_width);
  spec.flops = 6 * static_cast<double>(s.tokens) * dim * (3 * active + static_cast<double>(s.experts));
  // Three products (forward, input gradient, weight gradient) of gate and up, and of down, for every expert with its even
  // share of the rows, and for the shared expert with all of them.
  auto& products = spec.products.emplace_back();
  const auto add = [&products, &s](int64_t rows, int64_t width) {
    products.push_back({.trans_b = true, .m = rows, .n = 2 * width, .k = s.dim});
    products.push_back({.m = rows, .n = s.dim, .k = 2 * width});
    products.push_back({.trans_a = true, .m = 2 * width, .n = s.dim, .k = rows});
    products.push_back({.trans_b = true, .m = rows, .n = s.dim, .k = width});
    products.push_back({.m = rows, .n = width, .k = s.dim});
    products.push_back({.trans_a = true, .m = s.dim, .n = width, .k = rows});
  };
  for (int64_t e = 0; e < s.experts; ++e) add((s.tokens * s.top_k + s.experts - 1) / s.experts, s.width);
  if (s.shared_width > 0) add(s.tokens, s.shared_width);
  return spec;
}

}  // namespace lathe
