#include "lathe/loop/step_data.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/data/step_checks.h"
#include "lathe/loop/agreement.h"
#include "lathe/loop/setup.h"

namespace lathe {
namespace {

void check_reference(const RunConfig& config, const std::vector<Trajectory>& trajectories,
                     const std::string& file) {
  if (config.grpo.beta == 0 || config.grpo.reference_initial) return;
  for (const Trajectory& t : trajectories) {
    if (!t.ref_logprobs.empty()) continue;
    config_error("grpo.beta",
                 fmt::format("{} needs reference log-probs, but {}:{} has no ref_logprobs", config.grpo.beta,
                             file, t.line),
                 "set grpo.reference to initial to score them with the starting weights, or grpo.beta to 0");
  }
}

// The smallest and the largest version of the policy that sampled; nothing where no line has one.
std::pair<std::optional<int64_t>, std::optional<int64_t>> policy_versions(
    const std::vector<Trajectory>& trajectories) {
  std::optional<int64_t> oldest;
  std::optional<int64_t> newest;
  for (const Trajectory& t : trajectories) {
    if (!t.policy_version.has_value()) continue;
    oldest = std::min(oldest.value_or(*t.policy_version), *t.policy_version);
    newest = std::max(newest.value_or(*t.policy_version), *t.policy_version);
  }
  return {oldest, newest};
}

std::vector<Metric> data_metrics(const std::vector<Trajectory>& all, const std::vector<Trajectory>& trained,
                                 const StepBatch& batch) {
  double completion = 0;
  double truncated = 0;
  double scored = 0;
  double tokens = 0;
  for (const Trajectory& t : all) {
    completion += static_cast<double>(t.completion_ids.size());
    truncated += t.status == TrajectoryStatus::kTruncated ? 1 : 0;
  }
  for (const Trajectory& t : trained) {
    scored += static_cast<double>(t.scored_tokens());
    tokens += static_cast<double>(t.tokens());
  }
  const auto n = static_cast<double>(all.size());
  std::vector<Metric> metrics{{"data/trajectories", n},
                              {"data/trained_trajectories", static_cast<double>(trained.size())},
                              {"data/tokens", tokens},
                              {"data/scored_tokens", scored},
                              {"data/completion_len_mean", completion / n},
                              {"data/truncated_frac", truncated / n},
                              {"data/bad_lines", static_cast<double>(batch.bad_lines)},
                              {"data/epoch", static_cast<double>(batch.position.epoch)}};
  const auto [oldest, newest] = policy_versions(trained);
  if (oldest.has_value()) {
    metrics.emplace_back("data/policy_version_min", static_cast<double>(*oldest));
    metrics.emplace_back("data/policy_version_max", static_cast<double>(*newest));
  }
  return metrics;
}

void add_pack_metrics(const std::vector<PackedMicroBatch>& packed, const std::vector<MicroBatch>& built,
                      int64_t row_length, std::vector<Metric>& metrics) {
  double rows = 0;
  double used_rows = 0;
  double segments = 0;
  double real = 0;
  double computed = 0;
  for (const PackedMicroBatch& m : packed) {
    rows += static_cast<double>(m.rows.size());
    for (const PackedRow& row : m.rows) {
      segments += static_cast<double>(row.segments.size());
      used_rows += row.segments.empty() ? 0 : 1;
    }
  }
  for (const MicroBatch& m : built) {
    real += static_cast<double>(m.all_real_tokens);
    computed += static_cast<double>(m.all_rows * m.row_length);
  }
  metrics.emplace_back("pack/fill", real / (rows * static_cast<double>(row_length)));
  metrics.emplace_back("pack/computed_fill", real / computed);
  metrics.emplace_back("pack/segments_per_row", segments / std::max(used_rows, 1.0));
  metrics.emplace_back("pack/rows", rows);
  metrics.emplace_back("pack/empty_rows", rows - used_rows);
  metrics.emplace_back("pack/micro_batches", static_cast<double>(built.size()));
}

void add_to(Digest& digest, const Trajectory& t) {
  digest.add(t.line);
  digest.add_all(std::span(t.prompt_ids));
  digest.add_all(std::span(t.completion_ids));
  digest.add_all(std::span(t.completion_mask));
  digest.add(t.reward.value_or(std::nan("")));
  digest.add_all(std::span(t.advantage));
  digest.add(t.group);
  digest.add_all(std::span(t.rollout_logprobs));
  digest.add_all(std::span(t.old_logprobs));
  digest.add_all(std::span(t.ref_logprobs));
  digest.add(t.temperature);
  digest.add(static_cast<int64_t>(t.status));
  if (t.routed_experts.has_value()) digest.add_all(std::span(t.routed_experts->data));
}

double digest_of(const StepBatch& batch, const std::vector<PackedMicroBatch>& packed) {
  Digest digest;
  for (const int64_t value :
       {batch.batches, batch.bad_lines, batch.position.epoch, batch.position.file, batch.position.batch})
    digest.add(value);
  for (const Trajectory& t : batch.trajectories) add_to(digest, t);
  for (const PackedMicroBatch& m : packed) {
    for (const PackedRow& row : m.rows) {
      digest.add(static_cast<uint64_t>(row.segments.size()));
      for (const PackedSegment& segment : row.segments) {
        digest.add(segment.item);
        digest.add(segment.start);
      }
    }
  }
  return digest.value();
}

}  // namespace

StepData build_step_data(const RunConfig& config, const MicroBatchOptions& options, StepBatch batch) {
  StepData out;
  out.file = batch.file;
  GroupStats groups;
  std::vector<std::vector<double>> advantages = step_advantages(batch.trajectories, config.grpo, &groups);

  std::vector<Trajectory> trained;
  std::vector<std::vector<double>> trained_advantages;
  std::vector<Trajectory>& all = batch.trajectories;
  const std::vector<size_t> order = [&] {
    std::vector<size_t> indices;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].trains()) indices.push_back(i);
    }
    return indices;
  }();
  for (const size_t i : order) {
    trained.push_back(all[i]);
    trained_advantages.push_back(std::move(advantages[i]));
  }
  if (trained.empty()) {
    data_error(
        batch.file,
        fmt::format("none of the {} trajectories can be trained on (all failed or aborted)", all.size()),
        "check the `status` of the lines");
  }
  check_row_length(trained, config.data.row_length, batch.file);
  check_carried_fields(trained, batch.file);
  check_reference(config, trained, batch.file);
  check_loss_fields(config.grpo, trained, batch.file);
  if (config.grpo.use_rollout_logps) {
    for (Trajectory& t : trained) t.old_logprobs = t.rollout_logprobs;
  }
  out.has_old_logprobs = !trained.front().old_logprobs.empty();
  out.has_ref_logprobs = !trained.front().ref_logprobs.empty();

  std::vector<int64_t> lengths;
  for (const Trajectory& t : trained) {
    lengths.push_back(t.tokens());
    out.trained_tokens += t.tokens();
  }
  MicroBatchOptions batching = options;
  batching.file = batch.file;
  const std::vector<PackedMicroBatch> packed = pack(lengths, packing_options(config));
  for (const PackedMicroBatch& one : packed) {
    out.micro_batches.push_back(
        build_micro_batch(one, trained, trained_advantages, config.data.row_length, batching));
  }
  out.digest = digest_of(batch, packed);
  out.metrics = data_metrics(all, trained, batch);
  for (const auto& [name, value] : group_metrics(groups)) out.metrics.emplace_back(name, value);
  add_pack_metrics(packed, out.micro_batches, config.data.row_length, out.metrics);
  out.reward_mean = groups.reward_mean;
  return out;
}

}  // namespace lathe
