#include "lathe/data/step_checks.h"

#include <algorithm>

#include "lathe/core/error.h"
#include "lathe/data/micro_batch.h"

namespace lathe {
namespace {

std::string at_line(const std::string& file, const Trajectory& t) {
  return fmt::format("{}:{}", file, t.line);
}

const char* wanting_key(const GrpoConfig& config) {
  if (config.seq_mask_tis) return "grpo.truncated_importance_sampling_type: seq-mask-tis";
  if (config.sampler_is_token) return "grpo.sampler_is: token";
  if (config.use_rollout_logps) return "grpo.use_rollout_logps";
  return "grpo.seq_logprob_error_threshold";
}

void check_carried(std::span<const Trajectory> trajectories, const std::string& file, const char* key,
                   std::vector<double> Trajectory::*field) {
  const Trajectory* with = nullptr;
  const Trajectory* without = nullptr;
  int64_t missing = 0;
  for (const Trajectory& t : trajectories) {
    if (!t.trains()) continue;
    const bool has = !(t.*field).empty();
    if (has && with == nullptr) with = &t;
    if (!has && without == nullptr) without = &t;
    missing += has ? 0 : 1;
  }
  if (with == nullptr || without == nullptr) return;
  data_error(
      at_line(file, *without),
      fmt::format(
          "{}: missing here and in {} trajectories of the step altogether, but line {} has it; expected "
          "all or none",
          key, missing, with->line),
      fmt::format("give {} on every line, or drop it from all", key));
}

}  // namespace

void check_carried_fields(std::span<const Trajectory> trajectories, const std::string& file) {
  check_carried(trajectories, file, "old_logprobs", &Trajectory::old_logprobs);
  check_carried(trajectories, file, "ref_logprobs", &Trajectory::ref_logprobs);
  check_carried(trajectories, file, "rollout_logprobs", &Trajectory::rollout_logprobs);
}

void check_loss_fields(const GrpoConfig& config, std::span<const Trajectory> trajectories,
                       const std::string& file) {
  for (const Trajectory& t : trajectories) {
    if (!t.trains()) continue;
    if (config.needs_rollout_logprobs() && t.rollout_logprobs.empty()) {
      data_error(at_line(file, t),
                 fmt::format("rollout_logprobs: missing, but {} needs them", wanting_key(config)),
                 "record the sampler's log-probs, or drop the setting");
    }
    if (config.beta != 0 && !config.reference_initial && t.ref_logprobs.empty()) {
      data_error(at_line(file, t), fmt::format("ref_logprobs: missing, but grpo.beta is {}", config.beta),
                 "give ref_logprobs, or set grpo.reference: initial to score them with the starting weights");
    }
  }
}

void check_row_length(std::span<const Trajectory> trajectories, int64_t row_length, const std::string& file) {
  const Trajectory* first = nullptr;
  int64_t count = 0;
  int64_t longest = 0;
  for (const Trajectory& t : trajectories) {
    if (!t.trains() || t.tokens() <= row_length) continue;
    if (first == nullptr) first = &t;
    ++count;
    longest = std::max(longest, t.tokens());
  }
  if (first == nullptr) return;
  data_error(
      at_line(file, *first),
      fmt::format(
          "trajectory of {} tokens (prompt {} + completion {}), expected at most data.row_length = {}; {} "
          "of {} are too long, the longest has {}",
          first->tokens(), first->prompt_ids.size(), first->completion_ids.size(), row_length, count,
          trajectories.size(), longest),
      fmt::format("set data.row_length to at least {}, or leave these lines out", longest));
}

}  // namespace lathe
