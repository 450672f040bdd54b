#include "lathe/head/log_prob_head.h"

#include <algorithm>

namespace lathe {
namespace {

void check_arguments(const HeadParams& params, ConstView hidden, ConstView table, ConstView targets,
                     ConstView temperature) {
  const Shape tokens{hidden.dim(0)};
  LATHE_CHECK(params.chunk >= 1, "chunk {}", params.chunk);
  LATHE_CHECK(hidden.shape.rank() == 2 && table.shape.rank() == 2 && hidden.dim(1) == table.dim(1),
              "hidden {}, table {}", hidden.shape.text(), table.shape.text());
  LATHE_CHECK(targets.shape == tokens && temperature.shape == tokens, "hidden {}, targets {}, temperature {}",
              hidden.shape.text(), targets.shape.text(), temperature.shape.text());
}

// Memory for the logits of the largest chunk.
Tensor logits_scratch(const Device& device, const HeadParams& params, int64_t tokens, int64_t vocab) {
  return device.scratch(std::min(params.chunk, tokens) * vocab, "head logits");
}

// hidden table^T of `count` tokens from `begin` on, in `scratch`.
View chunk_logits(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
                  int64_t begin, int64_t count, View scratch) {
  const int64_t vocab = table.dim(0);
  const View logits = scratch.rows(0, count * vocab).reshape({count, vocab});
  device.kernels.matmul(*device.queue,
                        {.trans_a = false, .trans_b = true, .accumulate = false, .compute = params.compute},
                        hidden.rows(begin, count), table, logits);
  return logits;
}

void chunked_score(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
                   ConstView targets, ConstView temperature, View logp, View entropy, View stats) {
  const int64_t tokens = hidden.dim(0);
  const Tensor scratch = logits_scratch(device, params, tokens, table.dim(0));
  for (int64_t begin = 0; begin < tokens; begin += params.chunk) {
    const int64_t count = std::min(params.chunk, tokens - begin);
    const View logits = chunk_logits(device, params, hidden, table, begin, count, scratch);
    device.kernels.log_prob_forward(*device.queue, logits, targets.rows(begin, count),
                                    temperature.rows(begin, count), logp.rows(begin, count),
                                    entropy.rows(begin, count), stats.rows(begin, count));
  }
}

}  // namespace

void score(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
           ConstView targets, ConstView temperature, View logp, View entropy, HeadSaved& saved) {
  check_arguments(params, hidden, table, targets, temperature);
  const int64_t tokens = hidden.dim(0);
  LATHE_CHECK(logp.shape == targets.shape && entropy.shape == targets.shape,
              "logp {}, entropy {}, targets {}", logp.shape.text(), entropy.shape.text(),
              targets.shape.text());
  saved.stats = device.activation({tokens, 2}, "head stats");
  if (tokens == 0) return;
  if (params.mode == HeadMode::kChunked) {
    chunked_score(device, params, hidden, table, targets, temperature, logp, entropy, saved.stats);
    return;
  }
  const Tensor scratch = device.scratch(fused_log_prob_scratch(tokens, hidden.dim(1)), "head partials");
  device.kernels.fused_log_prob_forward(*device.queue, {.compute = params.compute}, hidden, table, targets,
                                        temperature, logp, entropy, saved.stats, {}, scratch);
}

void score_backward(const Device& device, const HeadParams& params, ConstView dlogp, ConstView dentropy,
                    ConstView hidden, ConstView table, ConstView targets, ConstView temperature,
                    ConstView entropy, const HeadSaved& saved, View dhidden, View dtable, bool accumulate) {
  check_arguments(params, hidden, table, targets, temperature);
  const int64_t tokens = hidden.dim(0);
  LATHE_CHECK(dhidden.shape == hidden.shape, "dhidden {}, hidden {}", dhidden.shape.text(),
              hidden.shape.text());
  if (tokens == 0) {
    if (!dtable.empty() && !accumulate) device.kernels.fill(*device.queue, 0, dtable);
    return;
  }
  if (params.mode == HeadMode::kFused) {
    const Tensor scratch = device.scratch(fused_log_prob_scratch(tokens, hidden.dim(1)), "head partials");
    device.kernels.fused_log_prob_backward(
        *device.queue, {.compute = params.compute, .accumulate = accumulate}, dlogp, dentropy, hidden, table,
        targets, temperature, entropy, saved.stats, {}, dhidden, dtable, scratch);
    return;
  }
  const Tensor scratch = logits_scratch(device, params, tokens, table.dim(0));
  for (int64_t begin = 0; begin < tokens; begin += params.chunk) {
    const int64_t count = std::min(params.chunk, tokens - begin);
    const auto part = [&](ConstView x) { return x.rows(begin, count); };
    const View logits = chunk_logits(device, params, hidden, table, begin, count, scratch);
    device.kernels.log_prob_backward(*device.queue, part(dlogp), dentropy.empty() ? dentropy : part(dentropy),
                                     logits, part(targets), part(temperature), part(entropy),
                                     part(saved.stats), logits);
    device.kernels.matmul(
        *device.queue, {.trans_a = false, .trans_b = false, .accumulate = false, .compute = params.compute},
        logits, table, dhidden.rows(begin, count));
    if (dtable.empty()) continue;
    device.kernels.matmul(
        *device.queue,
        {.trans_a = true, .trans_b = false, .accumulate = accumulate || begin > 0, .compute = params.compute},
        logits, part(hidden), dtable);
  }
}

}  // namespace lathe
