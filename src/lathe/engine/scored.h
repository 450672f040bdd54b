// Between the last layer and the loss: what the engine holds of the scored positions of a micro-batch.
#pragma once

#include <vector>

#include "lathe/engine/engine.h"
#include "lathe/head/log_prob_head.h"

namespace lathe {

struct Engine::Scored {
  GatheredWeights table;  // until backward is done; `chunked` gathers it for every chunk instead
  Tensor hidden;          // [n, hidden], gathered, before the final norm
  Tensor normed, rstd;
  Tensor targets;
  // `chunked` with head.replicate_sequence: every context rank runs over the tokens of all of them, by rank.
  Tensor all_normed, all_targets;
  int64_t own_begin = 0;        // where this rank's n are in what the head runs over
  int64_t chunks = 1;           // the same on all ranks that gather the table together
  Tensor logprobs, entropy;     // of what the head runs over
  std::vector<HeadSaved> head;  // per chunk
  Tensor d_normed;              // as input(); there early when the cotangents were known while scoring

  [[nodiscard]] ConstView input() const { return all_normed.empty() ? normed : all_normed; }
  [[nodiscard]] ConstView head_targets() const { return all_normed.empty() ? targets : all_targets; }
  [[nodiscard]] int64_t own() const { return normed.view().dim(0); }
  [[nodiscard]] ConstView own_part(ConstView x) const { return x.rows(own_begin, own()); }
};

}  // namespace lathe
