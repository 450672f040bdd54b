// The micro-batches of each optimizer step: batches of the source in order, each used for grpo.num_iterations steps. A batch
// that is used more than once, or whose reference log-probs have to be computed, is on the device as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lathe/engine/engine.h"
#include "lathe/loop/batch_source.h"
#include "lathe/loop/step_data.h"

namespace lathe {

// The host's part of a step's report.
struct StepInfo {
  std::vector<Metric> metrics;  // reward/, adv/, group/, data/, pack/
  int64_t trained_tokens = 0;
  double reward_mean = 0;
  double data_s = 0;  // host seconds of reading and packing the step's batch; 0 when it was there already
  double wait_s = 0;  // seconds for which its file was waited for
};

// Where a step is in the rollouts.
struct StepPosition {
  BatchPosition batch;
  int64_t iteration = 0;  // of the batch's grpo.num_iterations steps
  [[nodiscard]] bool operator==(const StepPosition&) const = default;
};

class StepFeed {
 public:
  StepFeed(const RunConfig& config, const MicroBatchOptions& batching, BatchSource& source)
      : config_(config), batching_(batching), source_(source) {}

  // Called between micro-batches; true: leave off.
  using StopCheck = std::function<bool()>;
  // The batch of the next step is there.
  [[nodiscard]] bool has_batch() const { return has_data_; }
  // Reads and packs it: the source's next; data errors.
  void read();
  [[nodiscard]] const StepData& ahead() const { return data_; }

  // The next step is the `iteration`th of its batch; old log-probs that were computed at the batch's start and cannot be
  // any more are put back. After read(). Data error: the batch has other micro-batches than it had.
  void go_on(int64_t iteration, std::vector<std::vector<double>> old_logprobs);
  // What go_on needs again: per micro-batch, of all its scored tokens, 0 where another rank has them; empty when the next
  // step is a batch's first.
  [[nodiscard]] std::vector<std::vector<double>> old_logprobs() const;

  // Makes the step's micro-batches ready, with the log-probs that a setting needs and the file does not have: the
  // reference's (`reference` may be null), and with several iterations those of the policy at the batch's start. False:
  // left off half-way, nothing has been done.
  [[nodiscard]] bool begin_step(Engine& engine, Engine* reference, const StopCheck& stop);
  [[nodiscard]] int64_t micro_batches() const { return count_; }
  [[nodiscard]] std::shared_ptr<PreparedMicroBatch> micro_batch(Engine& engine, int64_t index);
  // After the step's last micro-batch; its position moves on.
  [[nodiscard]] StepInfo end_step();

  // Of the step that is in progress or comes next.
  [[nodiscard]] StepPosition position() const;

 private:
  [[nodiscard]] bool repeats() const { return config_.grpo.num_iterations > 1; }

  const RunConfig& config_;
  MicroBatchOptions batching_;
  BatchSource& source_;
  BatchPosition position_;  // of the batch in data_, or that was to be read last
  StepData data_;           // micro-batches leave it one by one
  bool has_data_ = false;
  bool reading_ = false;     // begun; still true when it failed
  bool ready_ = false;       // prepared_ holds the whole batch
  bool scored_old_ = false;  // the batch's old log-probs are ours, not the file's
  std::vector<std::shared_ptr<PreparedMicroBatch>> prepared_;
  int64_t count_ = 0;
  int64_t iteration_ = 0;
  double data_s_ = 0;
  double wait_s_ = 0;
};

}  // namespace lathe
