// `lathe score`: log-probs and entropies of recorded trajectories.
#pragma once

#include <cstdint>
#include <string>

#include "lathe/core/log.h"
#include "lathe/loop/run_config.h"
#include "lathe/mesh/communicator.h"

namespace lathe {

struct ScoreSummary {
  int64_t trajectories = 0;
  int64_t bad_lines = 0;  // of data.on_bad_line: skip; written as they are
  int64_t tokens = 0;
  int64_t scored_tokens = 0;
  double seconds = 0;
  double tokens_per_s = 0;
  double mean_logprob = 0;  // over scored tokens
  // Means over scored tokens of trajectories with reward > 0 and the others; NaN when there is none.
  double mean_logprob_rewarded = 0;
  double mean_logprob_unrewarded = 0;
};

// config.model.path and the sections model, data, head, mesh, run.threads are used. Writes `out` beside and renames.
[[nodiscard]] ScoreSummary score(const RunConfig& config, const std::string& rollouts, const std::string& out,
                                 Log& log, const CommunicatorFactory& factory = {});

}  // namespace lathe
