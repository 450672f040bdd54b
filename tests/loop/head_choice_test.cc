#include <gtest/gtest.h>

#include "lathe/loop/run_config.h"

namespace lathe {
namespace {

TEST(HeadChoice, ModeIsFusedUnlessAChunkIsGiven) {
  HeadSection head;
  EXPECT_EQ(head_mode_choice(head), "fused: the fastest, and never stores all logits");
  head.chunk = 256;
  EXPECT_EQ(head_mode_choice(head), "local: head.chunk is given, and fused has no chunks");
  for (const char* mode : {"chunked", "local", "fused"}) {
    head.mode = mode;
    EXPECT_EQ(chosen_head_mode(head), mode);
    EXPECT_EQ(head_mode_choice(head), std::string(mode) + ": as given");
  }
}

TEST(HeadChoice, EveryReasonAgainstKnownCotangentsIsNamed) {
  RunConfig config;
  config.grpo.entropy_coef = 0.1;  // no reason
  config.grpo.beta = 0.1;
  EXPECT_EQ(known_cotangent_choice(config), "on: each token's gradient depends on its own log-prob alone");
  const std::string whole = " makes a token's gradient depend on its whole sequence";
  RunConfig gspo = config;
  gspo.grpo.loss_algo = LossAlgorithm::kGspoToken;
  EXPECT_EQ(known_cotangent_choice(gspo), "off: grpo.loss_algo: gspo-token" + whole);
  RunConfig gate = config;
  gate.grpo.seq_logprob_error_threshold = 2;
  EXPECT_EQ(known_cotangent_choice(gate), "off: grpo.seq_logprob_error_threshold" + whole);
  RunConfig band = config;
  band.grpo.seq_mask_tis = true;
  EXPECT_EQ(known_cotangent_choice(band),
            "off: grpo.truncated_importance_sampling_type: seq-mask-tis" + whole);
  RunConfig given = gate;
  given.head.known_cotangent = "off";
  EXPECT_EQ(known_cotangent_choice(given), "off: as given");
  for (const char* mode : {"chunked", "local"}) {
    RunConfig other = gate;
    other.head.mode = mode;
    EXPECT_EQ(known_cotangent_choice(other),
              std::string("off: head.mode ") + mode + " makes logits again in backward");
  }
  // The reasons are those that the engine goes by.
  for (const RunConfig* c : {&gspo, &gate, &band}) EXPECT_TRUE(c->grpo.depends_on_whole_sequences());
  EXPECT_FALSE(config.grpo.depends_on_whole_sequences());
}

}  // namespace
}  // namespace lathe
