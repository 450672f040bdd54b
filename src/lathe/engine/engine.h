// The training engine: fwd_bwd (asynchronous, at most two in flight), update, prepare, wait_for_device.
// A step is K x fwd_bwd, then update. Device work runs on its own thread; the caller packs and reads meanwhile.
// Called from one host thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/log.h"
#include "lathe/data/micro_batch.h"
#include "lathe/engine/background_task.h"
#include "lathe/engine/device_thread.h"
#include "lathe/engine/optimizer.h"
#include "lathe/grpo/loss.h"
#include "lathe/head/log_prob_head.h"
#include "lathe/model/checkpoint.h"
#include "lathe/model/context_shard.h"
#include "lathe/model/decoder.h"

namespace lathe {

enum class RematPolicy : uint8_t { kAuto, kFull, kNone };

struct EngineOptions {
  GrpoConfig grpo;
  OptimizerConfig optimizer;
  int64_t total_steps = 1;
  DType weight_dtype = DType::kF32;
  DType compute = DType::kF32;  // of the head's products and of the decoder's backward, see DecoderOptions
  std::vector<std::string> trainable;
  bool frozen = false;  // scoring only: no gradients, no optimizer
  HeadMode head_mode = HeadMode::kFused;
  bool known_cotangent = true;  // where the loss allows it
  int64_t head_chunk = 1024;    // of HeadMode::kChunked and kLocal
  // Of kChunked under context parallelism: every rank runs over the chunks of whole rows, else over its own tokens.
  bool replicate_sequence = true;
  ExpertPrefetch expert_prefetch = ExpertPrefetch::kNone;
  bool prefetch_layers = true;  // the weights of the next layer travel while this one computes
  int64_t delta_rule_chunk = 64;
  bool context_balance = true;
  DeltaContext delta_context = DeltaContext::kAuto;
  bool exclude_padding_from_routing = true;
  double ragged_buffer_factor = -1;
  int64_t token_chunks = 1;
  bool chunk_pipeline = false;
  RematPolicy remat = RematPolicy::kAuto;
  int64_t memory_budget = 0;  // bytes, for remat auto
  int max_inflight = 2;
};

// Rows are filled up to a multiple of this: shards are cut into halves, which attention balances, of whole cache lines.
// Each shard is cut into moe.token_chunks.
[[nodiscard]] inline int64_t row_multiple(int context_ranks, int64_t token_chunks) {
  return (context_ranks == 1 ? 1 : int64_t{8} * context_ranks) * token_chunks;
}

// A micro-batch with its index arrays on the device. Under context parallelism the host knows whole rows, and the device
// this rank's positions of them: of each row the context index's run of row_length / context.
struct PreparedMicroBatch {
  MicroBatch host;
  int64_t shard_length = 0;    // positions of a row that are here
  std::vector<size_t> scored;  // the host's scored tokens that are predicted here
  Tensor ids, segments, positions;
  ContextShard context;
  Tensor first_ids;  // [rows]: of the shard, for the left neighbour
  Tensor hidden_index, temperature;
  // head.replicate_sequence: the scored tokens of all context ranks, by rank.
  std::vector<int64_t> scored_by_rank;
  Tensor all_temperature;
  std::vector<Tensor> forced_experts;

  [[nodiscard]] bool replicates() const { return !scored_by_rank.empty(); }
  [[nodiscard]] ConstView head_temperature() const { return replicates() ? all_temperature : temperature; }
};

// What happened in one optimizer step.
struct StepResult {
  int64_t step = 0;  // 1-based
  LossStats stats;
  double loss = 0;  // numerator / denominator of the whole step
  double denominator = 0;
  UpdateResult update;
  double fwd_bwd_s = 0;  // device time
  double update_s = 0;
  double save_wait_s = 0;  // what the update waited for a checkpoint; not in update_s
  double idle_s = 0;       // device without queued work between the end of one update and the end of the next
  double moe_dropped_frac = 0;  // (token, expert) pairs that found no room
  double moe_max_load = 0;      // largest tokens-per-expert over its mean, over MoE layers
  int64_t head_restarts = 0;    // micro-batches whose cotangents could not be known while scoring after all
  double flops = 0;             // model FLOPs by the definition of perf/model_flops_per_s
};

// What a checkpoint holds of the engine besides tensors.
struct EngineCounters {
  int64_t step = 0;           // finished steps
  int64_t applied_steps = 0;  // those that were not skipped
  std::vector<double> loss_window, grad_norm_window;
};

struct TokenScores {  // per scored token of a micro-batch
  std::vector<double> logprobs;
  std::vector<double> entropy;
};

struct RehearsedPeak;

// Another rank could not do its part of a save, and has the reason.
class PeerSaveError : public Error {
 public:
  using Error::Error;
};

class Engine {
 public:
  Engine(Device& device, Communicator& communicator, const ModelConfig& config, const ParameterLayout& layout,
         const EngineOptions& options, Log& log);
  ~Engine();

  void load(const HfFolder& folder);  // waits

  [[nodiscard]] std::shared_ptr<PreparedMicroBatch> prepare(MicroBatch micro_batch);
  void fwd_bwd(std::shared_ptr<PreparedMicroBatch> prepared);
  // Queues the optimizer step; result_of waits for it and throws what stopped the device, if something did.
  [[nodiscard]] std::future<StepResult> update();
  [[nodiscard]] StepResult result_of(std::future<StepResult>& update);
  double wait_for_device();

  // Log-probs and entropies with the live weights; waits.
  [[nodiscard]] TokenScores score(std::shared_ptr<PreparedMicroBatch> prepared);

  // Waits, then the accumulated gradients divided by the step's denominator, before clipping.
  void write_gradients(const std::string& path);
  // Waits; a model error names the first tensor that trains and is not finite.
  void check_finite_weights();

  // Checkpoints. `write` runs on a thread of its own beside the steps that follow, and may call export_to and save_state:
  // weights and moments do not change before it is done, the next update waits for it. Waits for the device and for an
  // earlier save first. What `write` throws is thrown by the next of these three.
  void start_save(std::function<void()> write);
  [[nodiscard]] bool save_running() const { return saver_.running(); }
  void finish_save();  // waits
  // Of the ranks that save together, between their parts of the work: throws on all when it failed on one of them, which
  // comes here too and has the reason.
  void meet_savers(bool failed) const;
  // Waits.
  [[nodiscard]] EngineCounters counters();

  // Writes a model folder into `to` (exists) in the layout of `source`.
  // On a mesh all ranks write together, each its own elements.
  void export_to(const HfFolder& source, const std::string& to) const;
  // Writes moments, and masters where the model's files are not exact, to `to`/trainer (created); with `in_step` also the
  // gradients and sums accumulated so far, for which nothing may be queued.
  void save_state(const HfFolder& source, const std::string& to, bool in_step) const;
  [[nodiscard]] uint64_t state_bytes(const HfFolder& source, bool in_step) const;
  // After load(): takes what save_state wrote to `from`/trainer. Model errors name the file and the tensor.
  void restore(const HfFolder& source, const std::string& from, const EngineCounters& counters, bool in_step);

  [[nodiscard]] int64_t step() const { return step_; }
  [[nodiscard]] std::string remat_choice() const { return remat_choice_; }
  [[nodiscard]] ParameterStore& store() { return *store_; }
  // The last `count` layers keep what backward needs, the others recompute it.
  void keep_last_layers(int64_t count);
  [[nodiscard]] int64_t kept_layers() const { return std::count(keep_all_.begin(), keep_all_.end(), true); }
  // What a step of two such micro-batches holds at its worst moment, counted without computing anything. Only sizes and
  // counts of `micro_batch` matter.
  [[nodiscard]] RehearsedPeak rehearse(const MicroBatch& micro_batch, int64_t kept_layers) const;
  // Decides by remat.policy which layers keep it for micro-batches of this shape, and says so once.
  void plan_remat(int64_t rows, int64_t row_length);
  // Where kernels of this engine must run (tests look at device memory there).
  [[nodiscard]] DeviceThread& device_thread() { return *thread_; }

 private:
  void tell_remat(int64_t needed);
  void run_fwd_bwd(const PreparedMicroBatch& prepared);
  void count_loss(const MicroBatch& batch, const LossResult& loss);
  // What the ranks counted of the step so far, added up.
  struct StepSums {
    LossStats stats;
    double loss = 0;
    double denominator = 0;
    double flops = 0;
    int64_t head_restarts = 0;
  };
  using StepNumbers = std::vector<std::vector<double>>;  // per rank
  [[nodiscard]] StepNumbers step_numbers() const;
  void take_step_numbers(const std::vector<double>& numbers);
  [[nodiscard]] ParameterShare file_share(Channel channel) const;
  [[nodiscard]] StepSums sums_over_ranks();
  [[nodiscard]] std::vector<ExpertCounts> counts_over_ranks();
  [[nodiscard]] std::vector<std::vector<double>> of_all_ranks(std::span<const double> own, const char* name,
                                                              Channel channel) const;
  void restore_gradients(const std::string& path);
  [[nodiscard]] StepResult run_update(int64_t step);
  void prepare_scored(PreparedMicroBatch& prepared) const;
  [[nodiscard]] BatchView batch_view(const PreparedMicroBatch& prepared) const;
  // The scored positions between the last layer and the loss (scored.h): gathered and normed; then their log-probs.
  struct Scored;
  [[nodiscard]] Scored gather_scored(const PreparedMicroBatch& prepared, ConstView hidden, Phase phase);
  [[nodiscard]] TokenScores score_only(const PreparedMicroBatch& prepared, Scored& scored);
  // From the scores of this rank's positions to those of all scored tokens of its rows.
  [[nodiscard]] TokenScores whole_rows(const PreparedMicroBatch& prepared, const TokenScores& here);
  // The loss of a micro-batch; where cotangents are known while scoring, the head's gradients too.
  [[nodiscard]] LossResult score_for_loss(const PreparedMicroBatch& prepared, Scored& scored);
  [[nodiscard]] LossResult score_with_known_cotangents(const PreparedMicroBatch& prepared, Scored& scored,
                                                       ConstView table);
  // From d loss / d log-prob and entropy to scored.d_normed and the table's gradient.
  void backward_of_head(const PreparedMicroBatch& prepared, Scored& scored, const LossResult& loss);
  // The gradient of the last layer's output.
  [[nodiscard]] Tensor backward_from_scores(const PreparedMicroBatch& prepared, Scored& scored,
                                            const LossResult& loss);
  // No cotangent depends on other tokens' log-probs, whatever they are.
  [[nodiscard]] bool may_know_cotangents() const;
  [[nodiscard]] bool logits_finite_on_all_shards(const PreparedMicroBatch& prepared, const Scored& scored);
  [[nodiscard]] ParameterRole head_table() const;
  template <typename Fn>
  void for_each_chunk(const Scored& scored, Phase phase, const Fn& fn);
  // The id after each scored position.
  [[nodiscard]] Tensor shift_targets(const PreparedMicroBatch& prepared, Phase phase);
  void gather_sequence(const PreparedMicroBatch& prepared, Scored& scored);
  [[nodiscard]] int64_t common_chunks(int64_t tokens);
  [[nodiscard]] HeadParams head_params() const;
  [[nodiscard]] LossResult loss_of(const MicroBatch& batch, const TokenScores& scores) const;
  [[nodiscard]] LossResult loss_of(const MicroBatch& batch, const TokenScores& scores, size_t begin,
                                   size_t end) const;
  void upload_to(std::span<const double> values, View to) const;
  [[nodiscard]] Tensor upload(const std::vector<double>& values, const std::string& name) const;
  [[nodiscard]] std::vector<double> download(ConstView view) const;

  Device& device_;
  Communicator& communicator_;
  ModelConfig config_;
  EngineOptions options_;
  Log& log_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ModelContext> context_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<bool> keep_all_;
  std::string remat_choice_;
  int64_t step_ = 0;                         // updates submitted
  std::vector<ExpertCounts> expert_counts_;  // of the step in progress, per MoE layer
  StepResult accumulated_;                   // of the step in progress; device thread
  double loss_sum_ = 0;
  double denominator_sum_ = 0;
  // Last: they stop before what their work uses is gone.
  BackgroundTask saver_;
  std::unique_ptr<DeviceThread> thread_;
};

}  // namespace lathe
