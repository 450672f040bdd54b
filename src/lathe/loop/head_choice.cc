#include "lathe/loop/run_config.h"

namespace lathe {
namespace {

// The key that makes a token's gradient depend on other tokens' log-probs; empty if none does.
std::string key_of_whole_sequences(const GrpoConfig& grpo) {
  if (grpo.loss_algo == LossAlgorithm::kGspoToken) return "grpo.loss_algo: gspo-token";
  if (grpo.seq_logprob_error_threshold.has_value()) return "grpo.seq_logprob_error_threshold";
  if (grpo.seq_mask_tis) return "grpo.truncated_importance_sampling_type: seq-mask-tis";
  return "";
}

}  // namespace

std::string chosen_head_mode(const HeadSection& head) {
  if (head.mode != "auto") return head.mode;
  return head.chunk == HeadSection{}.chunk ? "fused" : "local";
}

std::string head_mode_choice(const HeadSection& head) {
  if (head.mode != "auto") return head.mode + ": as given";
  return chosen_head_mode(head) == "local" ? "local: head.chunk is given, and fused has no chunks"
                                           : "fused: the fastest, and never stores all logits";
}

std::string known_cotangent_choice(const RunConfig& config) {
  if (config.head.known_cotangent == "off") return "off: as given";
  const std::string mode = chosen_head_mode(config.head);
  if (mode != "fused") return "off: head.mode " + mode + " makes logits again in backward";
  const std::string key = key_of_whole_sequences(config.grpo);
  if (!key.empty()) return "off: " + key + " makes a token's gradient depend on its whole sequence";
  return "on: each token's gradient depends on its own log-prob alone";
}

}  // namespace lathe
