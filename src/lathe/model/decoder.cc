#include "lathe/model/decoder.h"

#include "lathe/model/context_heads.h"
#include "lathe/model/moe_ring.h"

namespace lathe {

Decoder::Decoder(const ModelContext& context) : context_(context) {
  context_.options.delta_context = resolve_delta_context(context_.config, context_.options.delta_context,
                                                         context_.communicator.size(kAxisContext));
  int moe = 0;
  for (const LayerKind& layer : context_.config.layers) {
    moe_index_.push_back(layer.mlp == MlpKind::kMoe ? moe++ : -1);
  }
}

ConstView Decoder::forced_experts(const BatchView& batch, int layer) const {
  const int index = moe_index_[static_cast<size_t>(layer)];
  return index < 0 || batch.forced_experts.empty() ? ConstView()
                                                   : batch.forced_experts[static_cast<size_t>(index)];
}

void Decoder::layer_forward(const BatchView& batch, int layer, const GatheredWeights& weights, ConstView x,
                            LayerSaved& saved, View out) {
  Device& device = context_.device;
  Queue& queue = *device.queue;
  const ModelConfig& config = context_.config;
  const LayerKind kind = config.layers[static_cast<size_t>(layer)];
  const RmsNormParams norm{.eps = config.rms_norm_eps, .offset = config.norm_offset};
  const int64_t tokens = batch.tokens();
  const Shape shape{tokens, config.hidden_size};

  saved.normed1 = device.activation(shape, "layer.normed1");
  saved.rstd1 = device.activation(Shape{tokens}, "layer.rstd1");
  device.kernels.rmsnorm_forward(queue, norm, x, weights[ParameterRole::kInputNorm], saved.normed1,
                                 saved.rstd1);
  saved.h = kind.mixer == MixerKind::kFullAttention
                ? attention_forward(context_, batch, weights, saved.normed1, saved.attention)
                : delta_forward(context_, batch, weights, saved.normed1, saved.delta);
  device.kernels.add(queue, x, saved.h, saved.h);

  saved.normed2 = device.activation(shape, "layer.normed2");
  saved.rstd2 = device.activation(Shape{tokens}, "layer.rstd2");
  device.kernels.rmsnorm_forward(queue, norm, saved.h, weights[ParameterRole::kPostAttentionNorm],
                                 saved.normed2, saved.rstd2);
  // Choices are kept, never recomputed: a near tie must not flip between forward and backward.
  const ConstView forced =
      saved.kept_experts.empty() ? forced_experts(batch, layer) : saved.kept_experts.view();
  const MlpOutput output = out.empty() ? MlpOutput::kUnused : MlpOutput::kWanted;
  const Tensor y = kind.mlp == MlpKind::kDense
                       ? dense_forward(context_, weights, saved.normed2, saved.dense, output)
                       : moe_forward(context_, batch, weights, saved.normed2, forced, saved.moe, output);
  if (output == MlpOutput::kWanted) device.kernels.add(queue, saved.h, y, out);
  saved.complete = true;
}

Tensor Decoder::layer_backward(const BatchView& batch, int layer, const GatheredWeights& weights,
                               LayerSaved& saved, ConstView dy) {
  Device& device = context_.device;
  Queue& queue = *device.queue;
  ParameterStore& store = context_.store;
  const ModelConfig& config = context_.config;
  const LayerKind kind = config.layers[static_cast<size_t>(layer)];
  const RmsNormParams norm{.eps = config.rms_norm_eps, .offset = config.norm_offset};
  const int64_t tokens = batch.tokens();
  const Shape shape{tokens, config.hidden_size};
  context_.phase = backward_phase(saved);
  if (!saved.complete) layer_forward(batch, layer, weights, saved.x, saved, {});
  context_.phase = Phase::kBackward;

  Tensor dh = device.activation(shape, "layer.dh");
  {
    Tensor d_normed = kind.mlp == MlpKind::kDense
                          ? dense_backward(context_, weights, layer, saved.normed2, saved.dense, dy)
                          : moe_backward(context_, weights, layer, saved.normed2, saved.moe, dy);
    Tensor scratch =
        device.scratch(rmsnorm_backward_scratch(tokens, config.hidden_size), "layer.norm2 partials");
    device.kernels.rmsnorm_backward(queue, norm, d_normed, saved.h,
                                    weights[ParameterRole::kPostAttentionNorm], saved.rstd2, dh,
                                    store.target(ParameterRole::kPostAttentionNorm, layer), scratch);
  }
  saved.normed2.reset();
  saved.h.reset();
  saved.moe = {};
  device.kernels.add(queue, dy, dh, dh);

  Tensor dx = device.activation(shape, "layer.dx");
  {
    Tensor d_normed =
        kind.mixer == MixerKind::kFullAttention
            ? attention_backward(context_, batch, weights, layer, saved.normed1, saved.attention, dh)
            : delta_backward(context_, batch, weights, layer, saved.normed1, saved.delta, dh);
    Tensor scratch =
        device.scratch(rmsnorm_backward_scratch(tokens, config.hidden_size), "layer.norm1 partials");
    device.kernels.rmsnorm_backward(queue, norm, d_normed, saved.x, weights[ParameterRole::kInputNorm],
                                    saved.rstd1, dx, store.target(ParameterRole::kInputNorm, layer), scratch);
  }
  device.kernels.add(queue, dh, dx, dx);
  saved = {};
  store.finish(layer);
  return dx;
}

Tensor Decoder::forward(const BatchView& batch, const std::vector<bool>& keep_all,
                        std::vector<LayerSaved>* saved, std::vector<ExpertCounts>* counts) {
  Device& device = context_.device;
  const ModelConfig& config = context_.config;
  const Shape shape{batch.tokens(), config.hidden_size};
  const size_t layers = config.layers.size();
  context_.phase = Phase::kForward;
  // The layers' inputs live longest: allocated together and first, they leave no gaps between what comes and goes.
  std::vector<Tensor> inputs(saved != nullptr ? layers + 1 : 2);
  for (Tensor& input : inputs) input = device.activation(shape, "layer.x");
  {
    const GatheredWeights weights = context_.store.gather(kEmbeddingUnit, Phase::kForward);
    device.kernels.embedding_forward(*device.queue, batch.ids, weights[ParameterRole::kEmbedding], inputs[0]);
  }
  if (saved != nullptr) saved->resize(layers);
  for (size_t i = 0; i < layers; ++i) {
    LayerSaved layer;
    Tensor& x = inputs[saved != nullptr ? i : i % 2];
    Tensor& out = inputs[saved != nullptr ? i + 1 : (i + 1) % 2];
    context_.communicator.check();
    const GatheredWeights weights = context_.store.gather(static_cast<int>(i), Phase::kForward);
    if (i + 1 < layers) context_.store.prefetch(static_cast<int>(i) + 1, Phase::kForward);
    layer_forward(batch, static_cast<int>(i), weights, x, layer, out);
    if (counts != nullptr && config.layers[i].mlp == MlpKind::kMoe) {
      ExpertCounts& count = counts->emplace_back(static_cast<size_t>(config.num_experts) + 1);
      add_expert_counts(context_, layer.moe, count);
    }
    if (saved == nullptr) continue;
    LayerSaved& kept = (*saved)[i];
    if (keep_all[i]) {
      kept = std::move(layer);
    } else {
      kept.kept_experts = std::move(layer.moe.expert);
    }
    kept.x = std::move(x);
  }
  return std::move(inputs[saved != nullptr ? layers : layers % 2]);
}

void Decoder::backward(const BatchView& batch, std::vector<LayerSaved>& saved, Tensor d_hidden) {
  Device& device = context_.device;
  for (size_t i = saved.size(); i-- > 0;) {
    context_.communicator.check();
    // Gathered once, for the recomputation too.
    const GatheredWeights weights = context_.store.gather(static_cast<int>(i), backward_phase(saved[i]));
    if (i > 0) context_.store.prefetch(static_cast<int>(i) - 1, backward_phase(saved[i - 1]));
    d_hidden = layer_backward(batch, static_cast<int>(i), weights, saved[i], d_hidden);
  }
  if (const View target = context_.store.target(ParameterRole::kEmbedding); !target.empty()) {
    device.kernels.embedding_backward(*device.queue, d_hidden, batch.ids, target);
  }
  context_.store.finish(kEmbeddingUnit);
}

}  // namespace lathe
