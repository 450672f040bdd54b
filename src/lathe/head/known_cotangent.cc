#include "lathe/head/known_cotangent.h"

#include <algorithm>
#include <cmath>

namespace lathe {

int64_t known_cotangent_block(int64_t vocab, DType type) {
  constexpr int64_t kLogitsBytes = int64_t{224} << 20;
  const int64_t fitting = kLogitsBytes / (vocab * dtype_size(type));
  return std::clamp<int64_t>(fitting / 64 * 64, 64, kHeadTileTokens);
}

void score_known(const Device& device, const HeadParams& params, ConstView hidden, ConstView table,
                 ConstView targets, ConstView temperature, const TokenCotangents& cotangents,
                 bool with_entropy, View logp, View entropy, View dhidden, View dtable, bool accumulate) {
  const int64_t tokens = hidden.dim(0);
  const int64_t vocab = table.dim(0);
  LATHE_CHECK(tokens > 0, "no tokens");
  check_head_targets(device, targets, vocab);
  const int64_t block = std::min(tokens, known_cotangent_block(vocab, device.float_type()));
  const Tensor kept = device.scratch(block * vocab, "head logits of a block");
  const Tensor scratch =
      device.scratch(fused_log_prob_scratch(block, hidden.dim(1), params.compute), "head partials");
  const Tensor stats = device.activation({block, 2}, "head stats");
  const Tensor d_logp = device.activation({block}, "head.dlogprobs");
  const Tensor d_entropy = with_entropy ? device.activation({block}, "head.dentropy") : Tensor();
  for (int64_t begin = 0; begin < tokens; begin += block) {
    const int64_t count = std::min(block, tokens - begin);
    const auto part = [&](auto view) { return view.rows(begin, count); };
    const View logits = kept.view().rows(0, count * vocab);
    const View stats_part = stats.view().rows(0, count);
    const View d_logp_part = d_logp.view().rows(0, count);
    const View d_entropy_part = with_entropy ? d_entropy.view().rows(0, count) : View();
    FusedLogProbParams fused{.compute = params.compute, .accumulate = accumulate || begin > 0};
    device.kernels.fused_log_prob_forward(*device.queue, fused, part(hidden), table, part(targets),
                                          part(temperature), part(logp), part(entropy), stats_part, logits,
                                          scratch);
    cotangents(begin, part(logp), part(entropy), d_logp_part, d_entropy_part);
    device.kernels.fused_log_prob_backward(*device.queue, fused, d_logp_part, d_entropy_part, part(hidden),
                                           table, part(targets), part(temperature), part(entropy), stats_part,
                                           logits, part(dhidden), dtable, scratch);
  }
}

bool logits_are_finite(const Device& device, ConstView hidden, ConstView table, double lowest_temperature) {
  constexpr double kLargest = 1e30;
  const double h = device.kernels.sum_of_squares(*device.queue, hidden);
  const double w = device.kernels.sum_of_squares(*device.queue, table);
  // |<h, w>| <= |h| |w| for every row; not a number compares as false.
  return std::sqrt(h) * std::sqrt(w) / std::min(lowest_temperature, 1.0) < kLargest;
}

}  // namespace lathe
