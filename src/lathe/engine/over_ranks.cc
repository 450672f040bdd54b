// What ranks tell each other on the host: sums and statistics of a step, scores of the positions they hold.
#include <algorithm>
#include <bit>

#include "lathe/engine/engine.h"

namespace lathe {

// The values of every rank, in rank order.
std::vector<std::vector<double>> Engine::of_all_ranks(std::span<const double> own, const char* name,
                                                      Channel channel) const {
  const auto ranks = static_cast<size_t>(communicator_.mesh().size());
  const size_t n = own.size();
  std::vector<double> all(ranks * n, 0.0);
  std::copy(own.begin(), own.end(), all.begin() + static_cast<int64_t>(n) * communicator_.rank());
  communicator_.all_reduce_sum(
      {.axes = kAxisAll, .phase = Phase::kUpdate, .tensor = name, .channel = channel}, all);
  std::vector<std::vector<double>> out;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto from = all.begin() + static_cast<int64_t>(rank * n);
    out.emplace_back(from, from + static_cast<int64_t>(n));
  }
  return out;
}

Engine::StepSums Engine::sums_over_ranks() {
  const auto own_stats = std::bit_cast<LossStatsNumbers>(accumulated_.stats);
  std::vector<double> own(own_stats.begin(), own_stats.end());
  own.insert(own.end(), {loss_sum_, denominator_sum_, accumulated_.flops,
                         static_cast<double>(accumulated_.head_restarts)});
  StepSums sums;
  for (const std::vector<double>& rank : of_all_ranks(own, "loss", Channel::kDevice)) {
    LossStatsNumbers stats;
    std::copy_n(rank.begin(), stats.size(), stats.begin());
    sums.stats.add(std::bit_cast<LossStats>(stats));
    const double* rest = rank.data() + stats.size();
    sums.loss += rest[0];
    sums.denominator += rest[1];
    sums.flops += rest[2];
    sums.head_restarts = std::max(sums.head_restarts, static_cast<int64_t>(rest[3]));
  }
  return sums;
}

std::vector<ExpertCounts> Engine::counts_over_ranks() {
  std::vector<double> flat;
  for (const ExpertCounts& layer : expert_counts_) flat.insert(flat.end(), layer.begin(), layer.end());
  communicator_.all_reduce_sum(
      {.axes = kAxisAll, .phase = Phase::kUpdate, .tensor = "moe.counts", .channel = Channel::kDevice}, flat);
  std::vector<ExpertCounts> out = expert_counts_;
  auto from = flat.begin();
  for (ExpertCounts& layer : out) {
    for (int64_t& count : layer) count = static_cast<int64_t>(*from++);
  }
  return out;
}

ParameterShare Engine::file_share(Channel channel) const {
  if (communicator_.mesh().size() == 1) return {};
  return {.files = {.leads = communicator_.rank() == 0,
                    .barrier =
                        [this, channel] {
                          if (channel == Channel::kSaver) return meet_savers(false);
                          communicator_.barrier(channel);
                        }},
          .elements = [this](size_t parameter) {
            const Parameter& p = store_->parameters()[parameter];
            return p.writes ? p.shard : FlatShard{};
          }};
}

void Engine::meet_savers(bool failed) const {
  if (communicator_.mesh().size() == 1) return;
  double failed_rank = failed ? communicator_.rank() : -1;
  communicator_.all_reduce_max(
      {.axes = kAxisAll, .phase = Phase::kUpdate, .tensor = "save", .channel = Channel::kSaver},
      std::span(&failed_rank, 1));
  if (failed || failed_rank < 0) return;
  throw PeerSaveError(ErrorKind::kRetryable, "checkpoint",
                      fmt::format("rank {:.0f} could not write its part", failed_rank),
                      "the same command goes on from the checkpoint before it");
}

TokenScores Engine::whole_rows(const PreparedMicroBatch& prepared, const TokenScores& here) {
  if (communicator_.size(kAxisContext) == 1) return here;
  const auto n = static_cast<size_t>(prepared.host.scored());
  // Every token is predicted on one rank; the others add 0.
  std::vector<double> both(2 * n, 0.0);
  for (size_t i = 0; i < prepared.scored.size(); ++i) {
    both[prepared.scored[i]] = here.logprobs[i];
    both[n + prepared.scored[i]] = here.entropy[i];
  }
  communicator_.all_reduce_sum(
      {.axes = kAxisContext, .phase = Phase::kForward, .tensor = "head.scores", .channel = Channel::kDevice},
      both);
  const auto middle = both.begin() + static_cast<int64_t>(n);
  return {{both.begin(), middle}, {middle, both.end()}};
}

}  // namespace lathe
