#include "lathe/engine/scored.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "lathe/head/known_cotangent.h"

namespace lathe {

Engine::Scored Engine::gather_scored(const PreparedMicroBatch& prepared, ConstView hidden, Phase phase) {
  const auto n = static_cast<int64_t>(prepared.scored.size());
  Scored out;
  // Gathered before the final norm: a row that is two thirds prompt costs a third.
  out.hidden = device_.activation(Shape{n, config_.hidden_size}, "head.hidden");
  device_.kernels.gather_rows(*device_.queue, hidden, prepared.hidden_index, out.hidden);
  out.weights = store_->gather(kHeadUnit, phase);
  out.normed = device_.activation(Shape{n, config_.hidden_size}, "head.normed");
  out.rstd = device_.activation(Shape{n}, "head.rstd");
  device_.kernels.rmsnorm_forward(*device_.queue,
                                  {.eps = config_.rms_norm_eps, .offset = config_.norm_offset}, out.hidden,
                                  out.weights[ParameterRole::kFinalNorm], out.normed, out.rstd);
  if (options_.head_mode == HeadMode::kChunked) out.weights = {};
  out.logprobs = device_.activation(Shape{n}, "head.logprobs");
  out.entropy = device_.activation(Shape{n}, "head.entropy");
  return out;
}

ParameterRole Engine::head_table() const {
  return config_.tie_word_embeddings ? ParameterRole::kEmbedding : ParameterRole::kLmHead;
}

HeadTable Engine::table_of(const Scored& scored, Phase phase) const {
  if (options_.head_mode != HeadMode::kChunked) return scored.weights[head_table()];
  return HeadTable([this, phase, held = std::make_shared<GatheredWeights>()] {
    *held = {};  // the last chunk's table goes before the next one comes
    *held = store_->gather(kHeadUnit, phase);
    return (*held)[head_table()];
  });
}

HeadParams Engine::head_params() const {
  return {.mode = options_.head_mode, .chunk = options_.head_chunk, .compute = options_.compute};
}

TokenScores Engine::score_only(const PreparedMicroBatch& prepared, Scored& scored) {
  lathe::score(device_, head_params(), scored.normed, table_of(scored, Phase::kForward), prepared.targets,
               prepared.temperature, scored.logprobs, scored.entropy, scored.head);
  return whole_rows(prepared, {download(scored.logprobs), download(scored.entropy)});
}

LossResult Engine::loss_of(const MicroBatch& batch, const TokenScores& scores) const {
  return loss_of(batch, scores, 0, static_cast<size_t>(batch.scored()));
}

// Of the scored tokens [begin, end), which are whole sequences.
LossResult Engine::loss_of(const MicroBatch& batch, const TokenScores& scores, size_t begin,
                           size_t end) const {
  const size_t n = end - begin;
  const auto part = [&](const auto& field) {
    return field.empty() ? std::span(field) : std::span(field).subspan(begin, n);
  };
  const std::vector<uint8_t> mask(n, 1);
  const int32_t first = n == 0 ? 0 : batch.sequence[begin];
  const int64_t sequences =
      n == static_cast<size_t>(batch.scored()) ? batch.sequences() : batch.sequence[end - 1] - first + 1;
  std::vector<int32_t> sequence(part(batch.sequence).begin(), part(batch.sequence).end());
  const int32_t base = n == static_cast<size_t>(batch.scored()) ? 0 : first;
  for (int32_t& s : sequence) s -= base;
  const auto overlong = std::span(batch.overlong);
  return grpo_loss(options_.grpo,
                   {.logprobs = part(scores.logprobs),
                    .entropy = part(scores.entropy),
                    .advantage = part(batch.advantage),
                    .mask = mask,
                    .sequence = sequence,
                    .sequences = sequences,
                    .old_logprobs = part(batch.old_logprobs),
                    .ref_logprobs = part(batch.ref_logprobs),
                    .rollout_logprobs = part(batch.rollout_logprobs),
                    .overlong = overlong.empty() ? overlong
                                                 : overlong.subspan(static_cast<size_t>(base),
                                                                    static_cast<size_t>(sequences))});
}

namespace {

// The scored tokens of the sequences that [begin, end) touches; a sequence's tokens lie together.
std::pair<size_t, size_t> whole_sequences(const std::vector<int32_t>& sequence, size_t begin, size_t end) {
  const int32_t first = sequence[begin];
  const int32_t last = sequence[end - 1];
  while (begin > 0 && sequence[begin - 1] == first) --begin;
  while (end < sequence.size() && sequence[end] == last) ++end;
  return {begin, end};
}

// Of the values of all scored tokens, those of the tokens that are predicted on this rank.
std::vector<double> here(const PreparedMicroBatch& prepared, const std::vector<double>& all) {
  std::vector<double> out;
  out.reserve(prepared.scored.size());
  for (const size_t token : prepared.scored) out.push_back(all[token]);
  return out;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

bool Engine::may_know_cotangents() const {
  return options_.known_cotangent && options_.head_mode == HeadMode::kFused &&
         !options_.grpo.depends_on_whole_sequences();
}

LossResult Engine::score_for_loss(const PreparedMicroBatch& prepared, Scored& scored) {
  if (may_know_cotangents() && !prepared.scored.empty()) {
    const ConstView table = scored.weights[head_table()];
    const auto& temperatures = prepared.host.temperature;
    if (logits_are_finite(device_, scored.normed, table,
                          *std::min_element(temperatures.begin(), temperatures.end()))) {
      return score_with_known_cotangents(prepared, scored, table);
    }
    ++accumulated_.head_restarts;
  }
  return loss_of(prepared.host, score_only(prepared, scored));
}

LossResult Engine::score_with_known_cotangents(const PreparedMicroBatch& prepared, Scored& scored,
                                               ConstView table) {
  const auto n = static_cast<size_t>(prepared.host.scored());
  // What is not scored yet is 0: a token's cotangent depends on its own log-prob and on what was known before.
  TokenScores scores{std::vector<double>(n, 0.0), std::vector<double>(n, 0.0)};
  std::vector<double> used(prepared.scored.size(), 0.0);
  const auto cotangents = [&](int64_t begin, ConstView logprobs, ConstView entropy, View d_logprobs,
                              View d_entropy) {
    const std::vector<double> lp = download(logprobs);
    const std::vector<double> h = download(entropy);
    const auto tokens = std::span(prepared.scored).subspan(static_cast<size_t>(begin), lp.size());
    for (size_t i = 0; i < lp.size(); ++i) {
      scores.logprobs[tokens[i]] = lp[i];
      scores.entropy[tokens[i]] = h[i];
    }
    const auto [first, last] = whole_sequences(prepared.host.sequence, tokens.front(), tokens.back() + 1);
    const LossResult loss = loss_of(prepared.host, scores, first, last);
    const auto part = [&, first = first](const std::vector<double>& field) {
      std::vector<double> out;
      for (const size_t token : tokens) out.push_back(field[token - first]);
      return out;
    };
    const std::vector<double> d_lp = part(loss.dlogprobs);
    std::copy(d_lp.begin(), d_lp.end(), used.begin() + begin);
    upload_to(d_lp, d_logprobs);
    if (!d_entropy.empty()) upload_to(part(loss.dentropy), d_entropy);
  };
  const GradientTarget target = store_->product_target(head_table());
  scored.d_normed = device_.activation(scored.normed.view().shape, "head.dnormed");
  score_known(device_, head_params(), scored.normed, table, prepared.targets, prepared.temperature,
              cotangents, options_.grpo.entropy_coef != 0, scored.logprobs, scored.entropy, scored.d_normed,
              target.view, target.accumulate);
  LossResult loss =
      loss_of(prepared.host, whole_rows(prepared, {download(scored.logprobs), download(scored.entropy)}));
  LATHE_CHECK(same_bits(here(prepared, loss.dlogprobs), used),
              "a token's cotangent was not known when it was used");
  return loss;
}

void Engine::backward_of_head(const PreparedMicroBatch& prepared, Scored& scored, const LossResult& loss) {
  const auto n = static_cast<int64_t>(prepared.scored.size());
  const Tensor d_logprobs = upload(here(prepared, loss.dlogprobs), "head.dlogprobs");
  const Tensor d_entropy =
      loss.dentropy.empty() ? Tensor() : upload(here(prepared, loss.dentropy), "head.dentropy");
  scored.d_normed = device_.activation(Shape{n, config_.hidden_size}, "head.dnormed");
  // chunked hands the table's gradient over after every chunk, the others once, when the unit is finished.
  const bool in_chunks = options_.head_mode == HeadMode::kChunked;
  const int64_t step = in_chunks ? options_.head_chunk : std::max<int64_t>(n, 1);
  for (int64_t begin = 0; begin == 0 || begin < n; begin += step) {
    if (begin > 0) store_->finish_table(head_table());
    const auto part = [&](ConstView x) { return x.rows(begin, std::min(step, n - begin)); };
    const GradientTarget target = store_->product_target(head_table());
    score_backward(
        device_, head_params(), part(d_logprobs), d_entropy.empty() ? ConstView() : part(d_entropy),
        part(scored.normed), table_of(scored, Phase::kBackward), part(prepared.targets),
        part(prepared.temperature), part(scored.entropy), part(scored.head.stats),
        scored.d_normed.view().rows(begin, std::min(step, n - begin)), target.view, target.accumulate);
  }
}

Tensor Engine::backward_from_scores(const PreparedMicroBatch& prepared, Scored& scored,
                                    const LossResult& loss) {
  Queue& queue = *device_.queue;
  const auto n = static_cast<int64_t>(prepared.scored.size());
  const int64_t tokens = prepared.host.rows * prepared.shard_length;
  Tensor d_hidden = device_.activation(Shape{tokens, config_.hidden_size}, "dhidden");
  if (scored.d_normed.empty()) backward_of_head(prepared, scored, loss);
  if (options_.head_mode == HeadMode::kChunked) scored.weights = store_->gather(kHeadUnit, Phase::kBackward);
  Tensor d_scored = device_.activation(Shape{n, config_.hidden_size}, "head.dhidden");
  Tensor scratch = device_.scratch(rmsnorm_backward_scratch(n, config_.hidden_size), "head.norm partials");
  device_.kernels.rmsnorm_backward(queue, {.eps = config_.rms_norm_eps, .offset = config_.norm_offset},
                                   scored.d_normed, scored.hidden, scored.weights[ParameterRole::kFinalNorm],
                                   scored.rstd, d_scored, store_->target(ParameterRole::kFinalNorm), scratch);
  device_.kernels.fill(queue, 0, d_hidden);
  device_.kernels.scatter_add_rows(queue, d_scored, prepared.hidden_index, d_hidden);
  scored.weights = {};
  store_->finish(kHeadUnit);
  return d_hidden;
}

}  // namespace lathe
