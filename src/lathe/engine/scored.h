// Between the last layer and the loss: what the engine holds of the scored positions of a micro-batch.
#pragma once

#include "lathe/engine/engine.h"
#include "lathe/head/log_prob_head.h"

namespace lathe {

struct Engine::Scored {
  GatheredWeights
      weights;    // of the head, until backward is done; `chunked` holds them only while it needs them
  Tensor hidden;  // [n, hidden], gathered, before the final norm
  Tensor normed, rstd;
  Tensor logprobs, entropy;  // [n]
  HeadSaved head;
  Tensor d_normed;  // there when the cotangents were known while scoring
};

}  // namespace lathe
