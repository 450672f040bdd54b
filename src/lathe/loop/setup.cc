#include "lathe/loop/setup.h"

#include <algorithm>

#include "lathe/loop/agreement.h"
#include "lathe/mesh/launch.h"

namespace lathe {

MeshShape mesh_shape(const MeshSection& mesh) {
  return {.data = static_cast<int>(mesh.data),
          .fsdp = static_cast<int>(mesh.fsdp),
          .context = static_cast<int>(mesh.context),
          .expert = static_cast<int>(mesh.expert)};
}

DeviceOptions device_options(const RunConfig& config, Notes* notes) {
  DeviceOptions options;
  options.name = config.run.device;
  options.threads =
      config.run.threads > 0 ? static_cast<int>(config.run.threads) : launch_from_environment().cores();
  if (options.name == "cpu") {
    options.isa = chosen_isa();
    options.isa_is_settled = false;
  }
  if (config.run.threads == 0) notes->emplace_back("run.threads", std::to_string(options.threads));
  notes->emplace_back("isa", options.name == "cpu" ? isa_name(options.isa) : "ref");
  return options;
}

void agree_on_isa(Communicator& communicator, Device& device, DeviceOptions& options, Notes* notes) {
  if (options.name != "cpu") return;
  const std::vector<double> isas = values_of_ranks(communicator, static_cast<double>(options.isa));
  const std::vector<double> by_hand = values_of_ranks(communicator, isa_is_set_by_hand() ? 1 : 0);
  std::vector<RankIsa> ranks;
  for (size_t i = 0; i < isas.size(); ++i)
    ranks.push_back({static_cast<Isa>(static_cast<int>(isas[i])), by_hand[i] > 0});
  const Isa common = common_isa(ranks);
  for (auto& [key, choice] : *notes) {
    if (key != "isa" || first_other_rank(isas) < 0) continue;
    choice = fmt::format("{}: all that rank {} has", isa_name(common),
                         std::min_element(isas.begin(), isas.end()) - isas.begin());
  }
  device.settle_isa(common);
  options = device.options;
}

LoadedModel open_model(const std::string& path, Log& log) {
  LoadedModel model;
  std::vector<std::string> warnings;
  model.config = read_model_config(path, &warnings);
  model.folder = std::make_unique<HfFolder>(path);
  model.layout = layout_of_folder(model.config, *model.folder, &warnings);
  for (const std::string& warning : warnings) log.warning("{}", warning);
  return model;
}

int64_t rank_memory_bytes() {
  return available_memory_bytes() / launch_from_environment().host_ranks;
}

EngineOptions engine_options(const RunConfig& config, const DeviceOptions& device, Notes* notes) {
  EngineOptions options;
  options.grpo = config.grpo;
  options.optimizer = config.optimizer;
  options.total_steps = std::max<int64_t>(config.run.steps, 1);
  options.trainable = config.model.trainable;
  options.weight_dtype = config.model.weight_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const bool native = device.name == "cpu" && has_native_bf16(device.isa);
  options.compute = config.model.compute_dtype == "bf16" || (config.model.compute_dtype == "auto" && native)
                        ? DType::kBF16
                        : DType::kF32;
  if (config.model.compute_dtype == "auto") {
    notes->emplace_back("model.compute_dtype", native ? "bf16: this processor multiplies it natively"
                                                      : "f32: no native bf16 products here");
  }
  options.head_chunk = config.head.chunk;
  options.head_mode = head_mode_of(chosen_head_mode(config.head));
  options.known_cotangent = config.head.known_cotangent == "auto";
  notes->emplace_back("head.mode", head_mode_choice(config.head));
  notes->emplace_back("head.known_cotangent", known_cotangent_choice(config));
  options.replicate_sequence = config.head.replicate_sequence != "never";
  options.expert_prefetch = config.moe.expert_weight_prefetch == "none" ? ExpertPrefetch::kNone
                            : config.moe.expert_weight_prefetch == "forward"
                                ? ExpertPrefetch::kForward
                                : ExpertPrefetch::kForwardBackward;
  options.delta_rule_chunk = config.gdn.chunk;
  options.context_balance = config.attention.context_balance;
  options.delta_context = config.gdn.context_parallel == "sequence" ? DeltaContext::kSequence
                          : config.gdn.context_parallel == "heads"  ? DeltaContext::kHeads
                                                                    : DeltaContext::kAuto;
  options.exclude_padding_from_routing = config.moe.exclude_padding_from_routing;
  options.ragged_buffer_factor = config.moe.ragged_buffer_factor;
  options.token_chunks = config.moe.token_chunks;
  options.chunk_pipeline = config.moe.chunk_pipeline;
  options.remat = config.remat.policy == "full"   ? RematPolicy::kFull
                  : config.remat.policy == "none" ? RematPolicy::kNone
                                                  : RematPolicy::kAuto;
  options.memory_budget = config.run.memory_budget > 0
                              ? config.run.memory_budget
                              : static_cast<int64_t>(0.7 * static_cast<double>(rank_memory_bytes()));
  options.max_inflight = static_cast<int>(config.engine.max_inflight);
  return options;
}

namespace {

int64_t filled_up(int64_t length, int64_t multiple) {
  return (length + multiple - 1) / multiple * multiple;
}

// Rows are filled up so that every shard can be cut into the chunks: a little is fine, a multiple of the work is not.
void check_token_chunks(const RunConfig& config, int context) {
  const int64_t chunks = config.moe.token_chunks;
  const int64_t length = config.data.row_length;
  const auto filled = [&](int64_t n) { return filled_up(length, row_multiple(context, n)); };
  const int64_t most = filled(1) + filled(1) / 8;
  if (chunks == 1 || filled(chunks) <= most) return;
  int64_t fitting = std::min(chunks - 1, length);
  while (fitting > 1 && filled(fitting) > most) --fitting;
  config_error("moe.token_chunks",
               fmt::format("{} chunks over {} context rank(s) would fill rows of {} up to {} positions",
                           chunks, context, length, filled(chunks)),
               fmt::format("use at most {}, or a data.row_length that is a multiple of {}", fitting,
                           row_multiple(context, chunks)));
}

}  // namespace

MicroBatchOptions micro_batch_options(const RunConfig& config, const ModelConfig& model,
                                      const Communicator& communicator) {
  const int context = communicator.size(kAxisContext);
  check_token_chunks(config, context);
  return {.score_all_completion_tokens = false,
          .moe_layers = model.num_moe_layers(),
          .top_k = model.num_experts_per_tok,
          .experts = model.num_experts,
          .use_forced_experts = config.moe.forced_routing == "auto",
          .share = {.index = communicator.index(kAxesRows),
                    .count = communicator.size(kAxesRows),
                    .length_multiple = row_multiple(context, config.moe.token_chunks)},
          .file = {}};
}

}  // namespace lathe
