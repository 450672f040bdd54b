// From the trajectories of a batch to micro-batches: advantages, checks, packing. All on the host, before the first FLOP.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/data/groups.h"
#include "lathe/data/micro_batch.h"
#include "lathe/loop/batch_source.h"
#include "lathe/loop/run_config.h"
#include "lathe/loop/run_folder.h"

namespace lathe {

struct StepData {
  std::vector<MicroBatch> micro_batches;
  std::vector<Metric> metrics;  // reward/, adv/, group/, data/, pack/
  int64_t trained_tokens = 0;   // real tokens of trained trajectories
  double reward_mean = 0;
  // The file has them, on every trained line: the same on all ranks, also where a rank has no token.
  bool has_old_logprobs = false;
  bool has_ref_logprobs = false;
  std::string file;
  double digest = 0;  // of the trajectories and of how they are packed: the same on all ranks
};

// Data errors name file and line: longer than the row, a field some but not all lines have, a gate without rollout
// log-probs, beta without reference log-probs and grpo.reference none, nothing to train on.
[[nodiscard]] StepData build_step_data(const RunConfig& config, const MicroBatchOptions& options,
                                       StepBatch batch);

}  // namespace lathe
