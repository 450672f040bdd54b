#include "lathe/head/log_prob_head.h"

#include <algorithm>
#include <vector>

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

void score_in_chunks(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
                     ConstView targets, ConstView temperature, View logp, View entropy, View stats) {
  const int64_t tokens = hidden.dim(0);
  check_head_targets(device, targets, table.dim(0));
  const Tensor scratch = logits_scratch(device, params, tokens, table.dim(0));
  for (int64_t begin = 0; begin < tokens; begin += params.chunk) {
    const int64_t count = std::min(params.chunk, tokens - begin);
    const View logits = chunk_logits(device, params, hidden, table, begin, count, scratch);
    device.kernels.log_prob_forward(*device.queue, logits, targets.rows(begin, count),
                                    temperature.rows(begin, count), logp.rows(begin, count),
                                    entropy.rows(begin, count), stats.rows(begin, count));
  }
}

void backward_in_chunks(const Device& device, const HeadParams& params, ConstView dlogp, ConstView dentropy,
                        ConstView hidden, ConstView table, ConstView targets, ConstView temperature,
                        ConstView entropy, ConstView stats, View dhidden, View dtable, bool accumulate) {
  const int64_t tokens = hidden.dim(0);
  const Tensor scratch = logits_scratch(device, params, tokens, table.dim(0));
  for (int64_t begin = 0; begin < tokens; begin += params.chunk) {
    const int64_t count = std::min(params.chunk, tokens - begin);
    const auto part = [&](ConstView x) { return x.rows(begin, count); };
    const View logits = chunk_logits(device, params, hidden, table, begin, count, scratch);
    device.kernels.log_prob_backward(*device.queue, part(dlogp), dentropy.empty() ? dentropy : part(dentropy),
                                     logits, part(targets), part(temperature), part(entropy), part(stats),
                                     logits);
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

}  // namespace

void check_head_targets(const Device& device, ConstView targets, int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(targets.size()));
  device.memory->copy_to_host(ids.data(), targets);
  for (const int32_t id : ids) LATHE_CHECK(id >= 0 && id < vocab, "target {} of {}", id, vocab);
}

HeadMode head_mode_of(const std::string& word) {
  if (word == "chunked") return HeadMode::kChunked;
  if (word == "local") return HeadMode::kLocal;
  LATHE_CHECK(word == "fused", "a mode of the head called '{}'", word);
  return HeadMode::kFused;
}

const char* head_mode_name(HeadMode mode) {
  switch (mode) {
    case HeadMode::kChunked:
      return "chunked";
    case HeadMode::kLocal:
      return "local";
    case HeadMode::kFused:
      break;
  }
  return "fused";
}

void score(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
           ConstView targets, ConstView temperature, View logp, View entropy, HeadSaved& saved) {
  check_arguments(params, hidden, table, targets, temperature);
  const int64_t tokens = hidden.dim(0);
  LATHE_CHECK(logp.shape == targets.shape && entropy.shape == targets.shape,
              "logp {}, entropy {}, targets {}", logp.shape.text(), entropy.shape.text(),
              targets.shape.text());
  saved.stats = device.activation({tokens, 2}, "head stats");
  if (tokens == 0) return;
  if (params.mode != HeadMode::kFused) {
    score_in_chunks(device, params, hidden, table, targets, temperature, logp, entropy, saved.stats);
    return;
  }
  check_head_targets(device, targets, table.dim(0));
  const Tensor scratch =
      device.scratch(fused_log_prob_scratch(tokens, hidden.dim(1), params.compute), "head partials");
  device.kernels.fused_log_prob_forward(*device.queue, {.compute = params.compute}, hidden, table, targets,
                                        temperature, logp, entropy, saved.stats, {}, scratch);
}

void score_backward(const Device& device, const HeadParams& params, ConstView dlogp, ConstView dentropy,
                    ConstView hidden, ConstView table, ConstView targets, ConstView temperature,
                    ConstView entropy, ConstView stats, View dhidden, View dtable, bool accumulate) {
  check_arguments(params, hidden, table, targets, temperature);
  const int64_t tokens = hidden.dim(0);
  LATHE_CHECK(dhidden.shape == hidden.shape, "dhidden {}, hidden {}", dhidden.shape.text(),
              hidden.shape.text());
  if (tokens == 0) {
    if (!dtable.empty() && !accumulate) device.kernels.fill(*device.queue, 0, dtable);
    return;
  }
  LATHE_CHECK(dtable.empty() || dtable.dtype == device.float_type(), "a gradient of the table of {}",
              dtype_name(dtable.dtype));
  if (params.mode != HeadMode::kFused) {
    backward_in_chunks(device, params, dlogp, dentropy, hidden, table, targets, temperature, entropy, stats,
                       dhidden, dtable, accumulate);
    return;
  }
  const Tensor scratch =
      device.scratch(fused_log_prob_scratch(tokens, hidden.dim(1), params.compute), "head partials");
  device.kernels.fused_log_prob_backward(*device.queue, {.compute = params.compute, .accumulate = accumulate},
                                         dlogp, dentropy, hidden, table, targets, temperature, entropy, stats,
                                         {}, dhidden, dtable, scratch);
}

}  // namespace lathe
