#include "lathe/config/option_table.h"

#include "lathe/config/option_rows.h"
#include "lathe/core/cpu.h"
#include "lathe/mesh/launch.h"

namespace lathe {
namespace {

constexpr double kMostSteps = 1e9;

Requirement kl_is_on() {
  return {"grpo.beta", "> 0", [](const RunConfig& c) { return c.grpo.beta > 0; }};
}
void add_model(std::vector<Option>* table) {
  Rows<ModelSection> rows(table, "model", &RunConfig::model);
  Option& path = rows.path("path", &ModelSection::path, {}, "the path of a folder",
                           "model folder in Hugging Face layout: config.json and safetensors");
  path.required = true;
  rows.word("weight_dtype", &ModelSection::weight_dtype, {"f32", "bf16"},
            "how matrices are stored on the device; the optimizer's master copy is f32 always")
      .score = true;
  Option& compute = rows.word(
      "compute_dtype", &ModelSection::compute_dtype, {"auto", "f32", "bf16"},
      "type of the inputs of the head's matrix products and of those of backward; auto: bf16 where this "
      "processor multiplies it natively, else f32; sums, and the layers' forward, are f32 always");
  compute.score = true;
  compute.choice = [](const RunConfig& c) {
    return std::string(c.run.device == "cpu" && has_native_bf16(chosen_isa()) ? "bf16" : "f32");
  };
  rows.regexes("trainable", &ModelSection::trainable,
               "a tensor trains if any of these is found in its Hugging Face name; empty: all train");
}

void add_data(std::vector<Option>* table) {
  Rows<DataSection> rows(table, "data", &RunConfig::data);
  rows.path("rollouts", &DataSection::rollouts, {}, "the path of a file or folder, or a glob",
            "a .jsonl or .jsonl.gz file, a glob, or a folder of step_*.jsonl (one file a step)")
      .required = true;
  rows.integer("trajectories_per_step", &DataSection::trajectories_per_step, at_least(0),
               "trajectories of one optimizer step, never splitting a group; 0: the whole file");
  Option& row_length = rows.integer("row_length", &DataSection::row_length, from_to(0, kMostTokens),
                                    "tokens of a packed row; `lathe train` needs it; 0 (score): the longest "
                                    "trajectory, rounded up");
  row_length.required = true;
  row_length.score = true;
  rows.integer("rows_per_micro_batch", &DataSection::rows_per_micro_batch, from_to(1, 1 << 20),
               "rows that run together, of the whole mesh")
      .score = true;
  rows.integer("max_segments", &DataSection::max_segments, from_to(1, 1 << 20),
               "most trajectories in one row")
      .score = true;
  rows.integer("segment_alignment", &DataSection::segment_alignment, from_to(1, kMostTokens),
               "every trajectory of a row but the first starts at a multiple of this")
      .score = true;
  rows.word("pad_position", &DataSection::pad_position, {"end", "start"},
            "where a row's free tokens go; start: in front, in multiples of pad_alignment")
      .score = true;
  Option& pad_alignment = rows.integer("pad_alignment", &DataSection::pad_alignment, from_to(1, kMostTokens),
                                       "the shift of a row padded at the start is a multiple of this");
  pad_alignment.score = true;
  pad_alignment.needs = {
      {"data.pad_position", "start", [](const RunConfig& c) { return c.data.pad_position == "start"; }}};
  rows.word("on_bad_line", &DataSection::on_bad_line, {"error", "skip"},
            "what a bad line of a rollout file does; skip: counted in data/bad_lines")
      .score = true;
  rows.number(
      "wait_s", &DataSection::wait_s, at_least(0),
      "seconds to wait for the next step file of a growing folder (docs/rollouts.md); 0: the files that are "
      "there, repeated");
}

void add_grpo_loss(Rows<GrpoConfig>& rows) {
  rows.choice<AdvantageEstimator>("advantage_estimator", &GrpoConfig::advantage_estimator,
                                  {{"grpo", AdvantageEstimator::kGrpo},
                                   {"drgrpo", AdvantageEstimator::kDrGrpo},
                                   {"rloo", AdvantageEstimator::kRloo},
                                   {"grpo-loo", AdvantageEstimator::kGrpoLoo}},
                                  "advantages from the rewards of a group, where a line gives none");
  rows.choice<LossAggregation>("loss_agg_mode", &GrpoConfig::loss_agg_mode,
                               {{"sequence-mean-token-mean", LossAggregation::kSequenceMeanTokenMean},
                                {"token-mean", LossAggregation::kTokenMean},
                                {"sequence-mean-token-scale", LossAggregation::kSequenceMeanTokenScale},
                                {"seq-mean-token-sum", LossAggregation::kSeqMeanTokenSum},
                                {"sequence-mean-token-sum-norm", LossAggregation::kSequenceMeanTokenSumNorm}},
                               "how token losses become one number");
  rows.optional_number(
          "loss_agg_norm", &GrpoConfig::loss_agg_norm, above(0),
          "the divisor of sequence-mean-token-scale (required there) and sequence-mean-token-sum-norm "
          "(null there: the number of active sequences)")
      .needs = {{"grpo.loss_agg_mode", "sequence-mean-token-scale or sequence-mean-token-sum-norm",
                 [](const RunConfig& c) {
                   return c.grpo.loss_agg_mode == LossAggregation::kSequenceMeanTokenScale ||
                          c.grpo.loss_agg_mode == LossAggregation::kSequenceMeanTokenSumNorm;
                 }}};
  rows.choice<LossAlgorithm>("loss_algo", &GrpoConfig::loss_algo,
                             {{"grpo", LossAlgorithm::kGrpo}, {"gspo-token", LossAlgorithm::kGspoToken}},
                             "probability ratios per token, or per sequence");
  rows.number("epsilon", &GrpoConfig::epsilon, at_least(0), "the ratio is clipped below at 1 - epsilon");
  rows.optional_number("epsilon_high", &GrpoConfig::epsilon_high, at_least(0),
                       "the ratio is clipped above at 1 + epsilon_high; null: epsilon")
      .choice = [](const RunConfig& c) { return number_text(c.grpo.epsilon); };
  rows.optional_number(
      "epsilon_c", &GrpoConfig::epsilon_c, above(1),
      "dual clip: with a negative advantage the loss is at most -epsilon_c times it; null: off");
  rows.number("beta", &GrpoConfig::beta, at_least(0), "weight of the divergence from the reference; 0: none");
  rows.choice<KlLossMode>(
          "kl_loss_mode", &GrpoConfig::kl_loss_mode,
          {{"kl", KlLossMode::kKl}, {"mse_kl", KlLossMode::kMseKl}, {"low_var_kl", KlLossMode::kLowVarKl}},
          "estimator of the divergence from the reference")
      .needs = {kl_is_on()};
  rows.optional_number("kl_clamp_value", &GrpoConfig::kl_clamp_value, above(0),
                       "the divergence of a token is clamped to +- this; null: off")
      .needs = {kl_is_on()};
}

void add_grpo_gates(Rows<GrpoConfig>& rows) {
  rows.flag("overlong_loss_masking", &GrpoConfig::overlong_loss_masking,
            "truncated trajectories leave the loss");
  rows.optional_number(
      "seq_logprob_error_threshold", &GrpoConfig::seq_logprob_error_threshold, at_least(1),
      "a sequence whose mean of exp|live - rollout log-prob| is above leaves the loss; null: off");
  rows.choice<bool>("sampler_is", &GrpoConfig::sampler_is_token, {{"null", false}, {"token", true}},
                    "importance weights between sampler and trainer, per token; null: off");
  rows.optional_number("sampler_is_threshold", &GrpoConfig::sampler_is_threshold, above(0),
                       "cap of those weights; null: no cap")
      .needs = {{"grpo.sampler_is", "token", [](const RunConfig& c) { return c.grpo.sampler_is_token; }}};
  rows.choice<bool>("truncated_importance_sampling_type", &GrpoConfig::seq_mask_tis,
                    {{"null", false}, {"seq-mask-tis", true}},
                    "importance weights per token, 0 for sequences outside a band of mean ratios; null: off");
  const Requirement band{"grpo.truncated_importance_sampling_type", "seq-mask-tis",
                         [](const RunConfig& c) { return c.grpo.seq_mask_tis; }};
  rows.optional_number("truncated_importance_sampling_ratio_min",
                       &GrpoConfig::truncated_importance_sampling_ratio_min, above(0),
                       "lower end of the band")
      .needs = {band};
  rows.optional_number("truncated_importance_sampling_ratio",
                       &GrpoConfig::truncated_importance_sampling_ratio, above(0), "upper end of the band")
      .needs = {band};
  rows.flag("use_rollout_logps", &GrpoConfig::use_rollout_logps,
            "the sampler's log-probs are the old ones of the ratio");
  rows.integer("num_iterations", &GrpoConfig::num_iterations, from_to(1, kMostSteps),
               "optimizer steps per batch");
  rows.number("entropy_coef", &GrpoConfig::entropy_coef, {},
              "weight of the entropy, which is rewarded; 0: none");
  rows.choice<bool>("reference", &GrpoConfig::reference_initial, {{"none", false}, {"initial", true}},
                    "where reference log-probs come from when a line has none; initial: the starting weights")
      .needs = {kl_is_on()};
  rows.weights("reward_weights", &GrpoConfig::reward_weights,
               "weights of the parts of a reward that is an object; a part not named counts 1");
}

void add_optimizer(std::vector<Option>* table) {
  Rows<OptimizerConfig> rows(table, "optimizer", &RunConfig::optimizer);
  rows.number("learning_rate", &OptimizerConfig::learning_rate, at_least(0),
              "AdamW's step size, after warm-up");
  rows.number("beta1", &OptimizerConfig::beta1, {.low = 0, .high = 1, .high_open = true},
              "decay of the first moment");
  rows.number("beta2", &OptimizerConfig::beta2, {.low = 0, .high = 1, .high_open = true},
              "decay of the second moment");
  rows.number("eps", &OptimizerConfig::eps, at_least(1e-30), "added to the root of the second moment");
  rows.number("weight_decay", &OptimizerConfig::weight_decay, at_least(0), "decoupled weight decay");
  rows.regexes("weight_decay_exclude", &OptimizerConfig::weight_decay_exclude,
               "tensors in whose Hugging Face name one of these is found do not decay")
      .needs = {
      {"optimizer.weight_decay", "> 0", [](const RunConfig& c) { return c.optimizer.weight_decay > 0; }}};
  rows.number("max_grad_norm", &OptimizerConfig::max_grad_norm, at_least(0),
              "gradients with a larger norm are scaled down to it; 0: off");
  rows.integer("warmup_steps", &OptimizerConfig::warmup_steps, from_to(0, kMostSteps),
               "steps in which the learning rate rises from 0");
  rows.choice<LrSchedule>(
      "schedule", &OptimizerConfig::schedule,
      {{"constant", LrSchedule::kConstant}, {"linear", LrSchedule::kLinear}, {"cosine", LrSchedule::kCosine}},
      "the learning rate after warm-up, up to run.steps");
  rows.number("min_lr_ratio", &OptimizerConfig::min_lr_ratio, from_to(0, 1),
              "last learning rate of a schedule, as a part of learning_rate")
      .needs = {{"optimizer.schedule", "linear or cosine",
                 [](const RunConfig& c) { return c.optimizer.schedule != LrSchedule::kConstant; }}};
  rows.flag(
      "skip_nonfinite", &OptimizerConfig::skip_nonfinite,
      "a step whose loss or gradient is not finite changes nothing; false: it stops the run, exit code 5");
  rows.integer("spike_window", &OptimizerConfig::spike_window, from_to(0, kMostSteps),
               "steps over which spikes of loss and gradient norm are judged, and then skipped; 0: off");
  rows.number("spike_factor", &OptimizerConfig::spike_factor, above(0),
              "a spike is this many standard deviations above the mean")
      .needs = {
      {"optimizer.spike_window", "> 0", [](const RunConfig& c) { return c.optimizer.spike_window > 0; }}};
}

void add_head_and_remat(std::vector<Option>* table) {
  Rows<HeadSection> head(table, "head", &RunConfig::head);
  Option& mode = head.word("mode", &HeadSection::mode, {"auto", "chunked", "local", "fused"},
                           "how log-probs are computed without storing all logits");
  mode.score = true;
  mode.choice = [](const RunConfig& c) { return chosen_head_mode(c.head); };
  Option& chunk = head.integer(
      "chunk", &HeadSection::chunk, from_to(1, kMostTokens),
      "tokens whose logits exist at one time, where head.mode is chunked or local; given, auto is local");
  chunk.score = true;
  chunk.needs = {
      {"head.mode", "auto, chunked or local", [](const RunConfig& c) { return c.head.mode != "fused"; }}};
  Option& known = head.word("known_cotangent", &HeadSection::known_cotangent, {"auto", "off"},
                            "logits are made once where the loss is known token by token");
  known.needs = {
      {"head.mode", "fused", [](const RunConfig& c) { return chosen_head_mode(c.head) == "fused"; }}};
  known.choice = [](const RunConfig& c) {
    const std::string choice = known_cotangent_choice(c);
    return choice.substr(0, choice.find(':'));
  };
  Option& replicate =
      head.word("replicate_sequence", &HeadSection::replicate_sequence, {"auto", "always", "never"},
                "chunked: every context rank goes through whole rows; never: through its own tokens");
  replicate.needs = {
      axis_above_one("context", &MeshSection::context),
      {"head.mode", "chunked", [](const RunConfig& c) { return chosen_head_mode(c.head) == "chunked"; }}};
  replicate.choice = [](const RunConfig& c) {
    return std::string(c.mesh.context == 1                     ? "never: there is one context rank"
                       : chosen_head_mode(c.head) == "chunked" ? "always: chunked is the baseline"
                                                               : "never: only chunked looks at whole rows");
  };

  Rows<RematSection> remat(table, "remat", &RunConfig::remat);
  remat
      .word("policy", &RematSection::policy, {"auto", "full", "none"},
            "full: backward computes a layer again from its input; none: it keeps what it needs; auto: what "
            "fits "
            "run.memory_budget; all three give equal bits")
      .choice = [](const RunConfig&) {
    return std::string("by memory, see the first line of metrics.jsonl");
  };
}

void add_engine(std::vector<Option>* table) {
  Rows<EngineSection> engine(table, "engine", &RunConfig::engine);
  engine.integer("max_inflight", &EngineSection::max_inflight, from_to(1, 64),
                 "micro-batches that may wait for the device, the running one included");
  engine
      .word(
          "boundary", &EngineSection::boundary, {"pipelined", "staged"},
          "pipelined: the next step's data is packed while this one runs; staged: it is packed between steps")
      .built = {"pipelined"};
}

void add_mesh(std::vector<Option>* table) {
  Rows<MeshSection> rows(table, "mesh", &RunConfig::mesh);
  const Interval axis = from_to(-1, 1 << 15);
  rows.integer("data", &MeshSection::data, axis,
               "ranks over rows, weights whole; -1 (one axis): all ranks that are left")
      .score = true;
  rows.integer("fsdp", &MeshSection::fsdp, axis, "ranks over rows, weights divided").score = true;
  rows.integer("context", &MeshSection::context, axis, "ranks over the positions of a row").score = true;
  rows.integer("expert", &MeshSection::expert, axis, "ranks over rows and experts").score = true;
}

void add_run(std::vector<Option>* table) {
  Rows<RunSection> rows(table, "run", &RunConfig::run);
  rows.path("dir", &RunSection::dir, {}, "the path of a folder",
            "the run folder: configuration, metrics, log, "
            "checkpoints")
      .required = true;
  rows.integer("steps", &RunSection::steps, from_to(1, kMostSteps), "optimizer steps of the whole run")
      .required = true;
  rows.unsigned_integer("seed", &RunSection::seed,
                        "seed of everything random; training on recorded rollouts has nothing random");
  Option& threads = rows.integer(
      "threads", &RunSection::threads, from_to(0, 4096),
      "threads of the device; 0: the cores this process may use, divided among the ranks of the host; "
      "results do not depend on it");
  threads.score = true;
  threads.choice = [](const RunConfig&) {
    return fmt::format("{} on this machine", launch_from_environment().cores());
  };
  rows.integer("save_every", &RunSection::save_every, from_to(0, kMostSteps),
               "steps between checkpoints; 0: only at the end");
  rows.integer("keep", &RunSection::keep, from_to(1, kMostSteps),
               "newest checkpoints that are kept; one between two micro-batches does not count");
  rows.path(
      "resume", &RunSection::resume, {"auto", "never"}, "auto, never or the path of a checkpoint",
      "auto: goes on from the newest checkpoint of run.dir if there is one; never: a new or empty folder; "
      "a path: goes on from that checkpoint, also into a new run.dir");
  rows.word("device", &RunSection::device, {"cpu", "ref"},
            "cpu: the fast path; ref: plain loops, slow, the oracle")
      .score = true;
  rows.bytes("memory_budget", &RunSection::memory_budget,
             "memory that remat.policy auto may fill; 0: 0.7 of what is free at start")
      .needs = {{"remat.policy", "auto", [](const RunConfig& c) { return c.remat.policy == "auto"; }}};
}

std::vector<Option> make_table() {
  std::vector<Option> table;
  add_model(&table);
  add_data(&table);
  Rows<GrpoConfig> grpo(&table, "grpo", &RunConfig::grpo);
  add_grpo_loss(grpo);
  add_grpo_gates(grpo);
  add_optimizer(&table);
  add_head_and_remat(&table);
  add_layer_options(&table);
  add_engine(&table);
  add_mesh(&table);
  add_run(&table);
  return table;
}

}  // namespace

const std::vector<OptionSection>& option_sections() {
  static const std::vector<OptionSection> kSections = {
      {"model", "the weights to start from"},
      {"data", "rollouts, and how they are packed into rows"},
      {"grpo", "advantages, loss and gates"},
      {"optimizer", "AdamW and its schedule"},
      {"head", "log-probs of the vocabulary"},
      {"remat", "what backward keeps and what it computes again"},
      {"moe", "mixture of experts"},
      {"gdn", "gated delta rule layers"},
      {"attention", "full attention layers"},
      {"engine", "the order of work"},
      {"mesh", "ranks per axis; one rank is the mesh of all ones"},
      {"run", "the run folder, its length and the machine"},
  };
  return kSections;
}

const std::vector<Option>& option_table() {
  static const std::vector<Option> kTable = make_table();
  return kTable;
}

const Option* find_option(const std::string& key) {
  for (const Option& option : option_table()) {
    if (option.key() == key) return &option;
  }
  return nullptr;
}

std::string default_text(const Option& option) {
  const std::string text = option.text(RunConfig{});
  return text == "\"\"" ? "" : text;
}

}  // namespace lathe
