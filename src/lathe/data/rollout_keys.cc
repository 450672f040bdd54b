#include "lathe/data/rollout_keys.h"

#include <algorithm>
#include <iterator>

#include "lathe/core/error.h"

namespace lathe {
namespace {

constexpr RolloutKey kKeys[] = {
    {"prompt_ids", "prompt_ids"},
    {"prompts", "prompt_ids"},
    {"prompt_token_ids", "prompt_ids"},
    {"completion_ids", "completion_ids"},
    {"responses", "completion_ids"},
    {"response_ids", "completion_ids"},
    {"completion_token_ids", "completion_ids"},
    {"tokens", "tokens"},
    {"token_ids", "tokens"},
    {"input_ids", "tokens"},
    {"sequences", "tokens"},
    {"response_length", "response_length"},
    {"completion_mask", "completion_mask"},
    {"response_mask", "completion_mask"},
    {"loss_mask", "completion_mask"},
    {"action_mask", "completion_mask"},
    {"token_mask", "completion_mask"},
    {"mask", "completion_mask"},
    {"reward", "reward"},
    {"rewards", "reward"},
    {"score", "reward"},
    {"scores", "reward"},
    {"advantage", "advantage"},
    {"advantages", "advantage"},
    {"group_id", "group_id"},
    {"uid", "group_id"},
    {"group_index", "group_id"},
    {"index", "group_id"},
    {"idx", "group_id"},
    {"rollout_logprobs", "rollout_logprobs"},
    {"rollout_log_probs", "rollout_logprobs"},
    {"rollout_per_token_logps", "rollout_logprobs"},
    {"sampling_per_token_logps", "rollout_logprobs"},
    {"generation_logprobs", "rollout_logprobs"},
    {"inference_logprobs", "rollout_logprobs"},
    {"logprobs", "rollout_logprobs"},
    {"old_logprobs", "old_logprobs"},
    {"old_log_probs", "old_logprobs"},
    {"old_per_token_logps", "old_logprobs"},
    {"prev_logprobs", "old_logprobs"},
    {"action_log_probs", "old_logprobs"},
    {"log_probs", "old_logprobs"},
    {"ref_logprobs", "ref_logprobs"},
    {"ref_log_prob", "ref_logprobs"},
    {"ref_log_probs", "ref_logprobs"},
    {"ref_per_token_logps", "ref_logprobs"},
    {"reference_policy_logprobs", "ref_logprobs"},
    {"base_action_log_probs", "ref_logprobs"},
    {"temperature", "temperature"},
    {"temperatures", "temperature"},
    {"status", "status"},
    {"truncated", "truncated"},
    {"policy_version", "policy_version"},
    {"param_version", "policy_version"},
    {"weight_version", "policy_version"},
    {"routed_experts", "routed_experts"},
    {"rollout_routed_experts", "routed_experts"},
    {"env", "env"},
    {"env_name", "env"},
    {"task_name", "env"},
    {"data_source", "env"},
    {"datasource", "env"},
    {"prompt", ""},
    {"completion", ""},
    {"metadata", ""},
    {"entropy", ""},
};

}  // namespace

const RolloutKey* find_rollout_key(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kKeys), std::end(kKeys), [&](const RolloutKey& k) { return k.name == name; });
  return found == std::end(kKeys) ? nullptr : found;
}

bool is_weak_group_name(std::string_view name) {
  return name == "index" || name == "idx";
}

std::string nearest_rollout_key(std::string_view name) {
  std::vector<std::string_view> names;
  for (const RolloutKey& k : kKeys) names.push_back(k.name);
  return nearest_name(std::string(name.substr(0, 64)), names);
}

}  // namespace lathe
