#include "lathe/engine/scored.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lathe/head/known_cotangent.h"

namespace lathe {

// Which scored tokens are predicted from positions of this rank.
void Engine::prepare_scored(PreparedMicroBatch& prepared) const {
  const MicroBatch& host = prepared.host;
  const int shards = communicator_.size(kAxisContext);
  const int64_t length = prepared.shard_length;
  struct Arrays {
    std::vector<int32_t> hidden_index;
    std::vector<double> temperature;
  };
  std::vector<Arrays> by_rank(static_cast<size_t>(shards));
  for (size_t i = 0; i < host.hidden_index.size(); ++i) {
    const int64_t row = host.hidden_index[i] / host.row_length;
    const int64_t position = host.hidden_index[i] % host.row_length;
    const int64_t rank = position / length;
    Arrays& arrays = by_rank[static_cast<size_t>(rank)];
    arrays.hidden_index.push_back(static_cast<int32_t>(row * length + position % length));
    arrays.temperature.push_back(host.temperature[i]);
    if (rank == communicator_.index(kAxisContext)) prepared.scored.push_back(i);
  }
  const auto place = [&](const std::vector<int32_t>& values, const char* name) {
    Tensor out = device_.indices(Shape{static_cast<int64_t>(values.size())}, name);
    device_.memory->copy_from_host(out, values.data());
    return out;
  };
  const Arrays& own = by_rank[static_cast<size_t>(communicator_.index(kAxisContext))];
  prepared.hidden_index = place(own.hidden_index, "batch.hidden_index");
  prepared.temperature = upload(own.temperature, "batch.temperature");
  if (shards > 1) {
    std::vector<int32_t> first;
    for (int64_t row = 0; row < host.rows; ++row) {
      const int64_t at = row * host.row_length + communicator_.index(kAxisContext) * length;
      first.push_back(host.ids[static_cast<size_t>(at)]);
    }
    prepared.first_ids = place(first, "batch.first_ids");
  }
  if (shards == 1 || options_.head_mode != HeadMode::kChunked || !options_.replicate_sequence) return;
  Arrays all;
  for (const Arrays& arrays : by_rank) {
    prepared.scored_by_rank.push_back(static_cast<int64_t>(arrays.hidden_index.size()));
    all.temperature.insert(all.temperature.end(), arrays.temperature.begin(), arrays.temperature.end());
  }
  prepared.all_temperature = upload(all.temperature, "batch.temperature, all");
}

// The last position of a shard predicts the first token of the next one, which the right neighbour sends. Nothing is scored
// at the last position of a row.
Tensor Engine::shift_targets(const PreparedMicroBatch& prepared, Phase phase) {
  const MicroBatch& host = prepared.host;
  const int shards = communicator_.size(kAxisContext);
  const int own = communicator_.index(kAxisContext);
  std::vector<int32_t> next(static_cast<size_t>(host.rows), 0);
  if (shards > 1) {
    const Tensor received = device_.indices(Shape{host.rows}, "head.next_token");
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
    if (own > 0) sends.push_back({own - 1, prepared.first_ids});
    if (own + 1 < shards) receives.push_back({own + 1, received});
    communicator_.send_recv(
        {.axes = kAxisContext, .phase = phase, .tensor = "head.next_token", .channel = Channel::kDevice},
        sends, receives);
    if (own + 1 < shards) device_.memory->copy_to_host(next.data(), received);
  }
  std::vector<int32_t> targets;
  for (const size_t token : prepared.scored) {
    const int64_t at = host.hidden_index[token];
    const bool last = (at + 1) % prepared.shard_length == 0;
    targets.push_back(last ? next[static_cast<size_t>(at / host.row_length)]
                           : host.ids[static_cast<size_t>(at + 1)]);
  }
  Tensor out = device_.indices(Shape{static_cast<int64_t>(targets.size())}, "head.targets");
  device_.memory->copy_from_host(out, targets.data());
  return out;
}

Engine::Scored Engine::gather_scored(const PreparedMicroBatch& prepared, ConstView hidden, Phase phase) {
  const auto n = static_cast<int64_t>(prepared.scored.size());
  Scored out;
  // Gathered before the final norm: a row that is two thirds prompt costs a third.
  out.hidden = device_.activation(Shape{n, config_.hidden_size}, "head.hidden");
  device_.kernels.gather_rows(*device_.queue, hidden, prepared.hidden_index, out.hidden);
  out.normed = device_.activation(Shape{n, config_.hidden_size}, "head.normed");
  out.rstd = device_.activation(Shape{n}, "head.rstd");
  device_.kernels.rmsnorm_forward(*device_.queue,
                                  {.eps = config_.rms_norm_eps, .offset = config_.norm_offset}, out.hidden,
                                  store_->whole(ParameterRole::kFinalNorm), out.normed, out.rstd);
  out.targets = shift_targets(prepared, phase);
  if (options_.head_mode == HeadMode::kChunked) {
    if (prepared.replicates()) gather_sequence(prepared, out);
    out.chunks = common_chunks(out.input().dim(0));
  } else {
    out.table = store_->gather(kHeadUnit, phase);
  }
  const Shape scored{out.input().dim(0)};
  out.logprobs = device_.activation(scored, "head.logprobs");
  out.entropy = device_.activation(scored, "head.entropy");
  return out;
}

// The scored tokens of every context rank, by rank: states and targets.
void Engine::gather_sequence(const PreparedMicroBatch& prepared, Scored& scored) {
  const int own = communicator_.index(kAxisContext);
  const int64_t n =
      std::accumulate(prepared.scored_by_rank.begin(), prepared.scored_by_rank.end(), int64_t{0});
  scored.all_normed = device_.activation(Shape{n, config_.hidden_size}, "head.normed, all");
  scored.all_targets = device_.indices(Shape{n}, "head.targets, all");
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;
  int64_t begin = 0;
  for (int rank = 0; rank < communicator_.size(kAxisContext); ++rank) {
    const int64_t count = prepared.scored_by_rank[static_cast<size_t>(rank)];
    if (rank == own) scored.own_begin = begin;
    if (prepared.scored_by_rank[static_cast<size_t>(own)] > 0) {
      sends.push_back({rank, scored.normed});
      sends.push_back({rank, scored.targets});
    }
    if (count > 0) {
      receives.push_back({rank, scored.all_normed.view().rows(begin, count)});
      receives.push_back({rank, scored.all_targets.view().rows(begin, count)});
    }
    begin += count;
  }
  communicator_.send_recv(
      {.axes = kAxisContext, .phase = Phase::kForward, .tensor = "head.hidden", .channel = Channel::kDevice},
      sends, receives);
}

// Ranks that gather the table together make as many chunks as the one with the most.
int64_t Engine::common_chunks(int64_t tokens) {
  const int64_t own = (tokens + options_.head_chunk - 1) / options_.head_chunk;
  auto chunks = static_cast<double>(own);
  communicator_.all_reduce_max(
      {.axes = kAxesDense, .phase = Phase::kForward, .tensor = "head.chunks", .channel = Channel::kDevice},
      std::span(&chunks, 1));
  return std::max<int64_t>(static_cast<int64_t>(chunks), 1);
}

ParameterRole Engine::head_table() const {
  return config_.tie_word_embeddings ? ParameterRole::kEmbedding : ParameterRole::kLmHead;
}

HeadParams Engine::head_params() const {
  return {.mode = options_.head_mode, .chunk = options_.head_chunk, .compute = options_.compute};
}

// fn(chunk, first token, tokens, table): `chunked` gathers the table for each of its chunks, also where this rank has no
// token left; the others run over all tokens at once with the table they hold.
template <typename Fn>
void Engine::for_each_chunk(const Scored& scored, Phase phase, const Fn& fn) {
  const int64_t n = scored.input().dim(0);
  if (options_.head_mode != HeadMode::kChunked) {
    fn(0, 0, n, scored.table[head_table()]);
    return;
  }
  for (int64_t chunk = 0; chunk < scored.chunks; ++chunk) {
    const int64_t begin = std::min(chunk * options_.head_chunk, n);
    const GatheredWeights weights = store_->gather(kHeadUnit, phase);
    fn(chunk, begin, std::min(options_.head_chunk, n - begin), weights[head_table()]);
  }
}

TokenScores Engine::score_only(const PreparedMicroBatch& prepared, Scored& scored) {
  scored.head.resize(static_cast<size_t>(scored.chunks));
  for_each_chunk(scored, Phase::kForward, [&](int64_t chunk, int64_t begin, int64_t count, ConstView table) {
    lathe::score(device_, head_params(), scored.input().rows(begin, count), table,
                 scored.head_targets().rows(begin, count), prepared.head_temperature().rows(begin, count),
                 scored.logprobs.view().rows(begin, count), scored.entropy.view().rows(begin, count),
                 scored.head[static_cast<size_t>(chunk)]);
  });
  return whole_rows(prepared,
                    {download(scored.own_part(scored.logprobs)), download(scored.own_part(scored.entropy))});
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

// Sequences cross shards: a log-prob that is not finite on one of them changes the cotangents of all.
bool Engine::logits_finite_on_all_shards(const PreparedMicroBatch& prepared, const Scored& scored) {
  const auto& temperatures = prepared.host.temperature;
  const bool finite = prepared.scored.empty() ||
                      logits_are_finite(device_, scored.normed, scored.table[head_table()],
                                        *std::min_element(temperatures.begin(), temperatures.end()));
  double infinite_shards = finite ? 0 : 1;
  if (communicator_.size(kAxisContext) > 1) {
    communicator_.all_reduce_max({.axes = kAxisContext,
                                  .phase = Phase::kForward,
                                  .tensor = "head.finite",
                                  .channel = Channel::kDevice},
                                 std::span(&infinite_shards, 1));
  }
  return infinite_shards == 0;
}

LossResult Engine::score_for_loss(const PreparedMicroBatch& prepared, Scored& scored) {
  if (may_know_cotangents()) {
    if (!logits_finite_on_all_shards(prepared, scored)) {
      ++accumulated_.head_restarts;
    } else if (!prepared.scored.empty()) {
      return score_with_known_cotangents(prepared, scored, scored.table[head_table()]);
    }
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
  score_known(device_, head_params(), scored.normed, table, scored.targets, prepared.temperature, cotangents,
              options_.grpo.entropy_coef != 0, scored.logprobs, scored.entropy, scored.d_normed, target.view,
              target.accumulate);
  LossResult loss =
      loss_of(prepared.host, whole_rows(prepared, {download(scored.logprobs), download(scored.entropy)}));
  LATHE_CHECK(same_bits(here(prepared, loss.dlogprobs), used),
              "a token's cotangent was not known when it was used");
  return loss;
}

void Engine::backward_of_head(const PreparedMicroBatch& prepared, Scored& scored, const LossResult& loss) {
  const int64_t n = scored.input().dim(0);
  // Cotangents of other ranks' tokens are theirs: 0 here.
  const auto own = [&](const std::vector<double>& all) {
    std::vector<double> out(static_cast<size_t>(n), 0.0);
    const std::vector<double> values = here(prepared, all);
    std::copy(values.begin(), values.end(), out.begin() + scored.own_begin);
    return out;
  };
  const Tensor d_logprobs = upload(own(loss.dlogprobs), "head.dlogprobs");
  const Tensor d_entropy = loss.dentropy.empty() ? Tensor() : upload(own(loss.dentropy), "head.dentropy");
  scored.d_normed = device_.activation(Shape{n, config_.hidden_size}, "head.dnormed");
  for_each_chunk(scored, Phase::kBackward, [&](int64_t chunk, int64_t begin, int64_t count, ConstView table) {
    // chunked hands the table's gradient over after every chunk, the others once, when the unit is finished.
    if (chunk > 0) store_->finish_table(head_table());
    const auto part = [&](ConstView x) { return x.rows(begin, count); };
    const GradientTarget target = store_->product_target(head_table());
    score_backward(device_, head_params(), part(d_logprobs),
                   d_entropy.empty() ? ConstView() : part(d_entropy), part(scored.input()), table,
                   part(scored.head_targets()), part(prepared.head_temperature()), part(scored.entropy),
                   scored.head[static_cast<size_t>(chunk)].stats, scored.d_normed.view().rows(begin, count),
                   target.view, target.accumulate);
  });
}

Tensor Engine::backward_from_scores(const PreparedMicroBatch& prepared, Scored& scored,
                                    const LossResult& loss) {
  Queue& queue = *device_.queue;
  const auto n = static_cast<int64_t>(prepared.scored.size());
  const int64_t tokens = prepared.host.rows * prepared.shard_length;
  Tensor d_hidden = device_.activation(Shape{tokens, config_.hidden_size}, "dhidden");
  if (scored.d_normed.empty()) backward_of_head(prepared, scored, loss);
  Tensor d_scored = device_.activation(Shape{n, config_.hidden_size}, "head.dhidden");
  Tensor scratch = device_.scratch(rmsnorm_backward_scratch(n, config_.hidden_size), "head.norm partials");
  device_.kernels.rmsnorm_backward(queue, {.eps = config_.rms_norm_eps, .offset = config_.norm_offset},
                                   scored.own_part(scored.d_normed), scored.hidden,
                                   store_->whole(ParameterRole::kFinalNorm), scored.rstd, d_scored,
                                   store_->target(ParameterRole::kFinalNorm), scratch);
  device_.kernels.fill(queue, 0, d_hidden);
  device_.kernels.scatter_add_rows(queue, d_scored, prepared.hidden_index, d_hidden);
  scored.table = {};
  store_->finish(kHeadUnit);
  return d_hidden;
}

}  // namespace lathe
