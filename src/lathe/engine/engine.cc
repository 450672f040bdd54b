#include "lathe/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "lathe/engine/scored.h"
#include "lathe/model/flops.h"

namespace lathe {

Engine::Engine(Device& device, Communicator& communicator, const ModelConfig& config,
               const ParameterLayout& layout, const EngineOptions& options, Log& log)
    : device_(device), communicator_(communicator), config_(config), options_(options), log_(log) {
  thread_ = std::make_unique<DeviceThread>(options_.max_inflight);
  thread_->run([&] {
    store_ =
        std::make_unique<ParameterStore>(device_, communicator_, layout,
                                         ParameterStoreOptions{.weight_dtype = options_.weight_dtype,
                                                               .trainable = options_.trainable,
                                                               .frozen = options_.frozen,
                                                               .expert_prefetch = options_.expert_prefetch,
                                                               .prefetch = options_.prefetch_layers});
    if (!options_.frozen) {
      optimizer_ = std::make_unique<Optimizer>(device_, communicator_, *store_, options_.optimizer,
                                               options_.total_steps);
    }
    context_ = std::make_unique<ModelContext>(
        ModelContext{device_, communicator_, *store_, config_,
                     DecoderOptions{.compute = options_.compute,
                                    .delta_rule_chunk = options_.delta_rule_chunk,
                                    .context_balance = options_.context_balance,
                                    .delta_context = options_.delta_context,
                                    .exclude_padding_from_routing = options_.exclude_padding_from_routing,
                                    .ragged_buffer_factor = options_.ragged_buffer_factor,
                                    .token_chunks = options_.token_chunks,
                                    .chunk_pipeline = options_.chunk_pipeline}});
    decoder_ = std::make_unique<Decoder>(*context_);
  });
}

Engine::~Engine() {
  // The device thread may stand in an exchange with ranks that will not come.
  if (std::uncaught_exceptions() > 0) communicator_.fail("stopped by an error");
}

void Engine::load(const HfFolder& folder) {
  int64_t numbers = 0;
  for (const Parameter& parameter : store_->parameters()) numbers += parameter.spec->shape.size();
  const Activity activity = log_.activity("loading weights", numbers, "numbers");
  thread_->run([&] { store_->load(folder, [&activity](int64_t more) { activity.advance(more); }); });
}

void Engine::upload_to(std::span<const double> values, View to) const {
  if (to.dtype == DType::kF64) {
    device_.memory->copy_from_host(to, values.data());
  } else {
    const std::vector<float> narrow(values.begin(), values.end());
    device_.memory->copy_from_host(to, narrow.data());
  }
}

Tensor Engine::upload(const std::vector<double>& values, const std::string& name) const {
  Tensor out = device_.activation(Shape{static_cast<int64_t>(values.size())}, name);
  upload_to(values, out);
  return out;
}

std::vector<double> Engine::download(ConstView view) const {
  std::vector<double> out(static_cast<size_t>(view.size()));
  if (view.dtype == DType::kF64) {
    device_.memory->copy_to_host(out.data(), view);
  } else {
    std::vector<float> narrow(out.size());
    device_.memory->copy_to_host(narrow.data(), view);
    std::copy(narrow.begin(), narrow.end(), out.begin());
  }
  return out;
}

std::shared_ptr<PreparedMicroBatch> Engine::prepare(MicroBatch micro_batch) {
  auto prepared = std::make_shared<PreparedMicroBatch>();
  prepared->host = std::move(micro_batch);
  const MicroBatch& host = prepared->host;
  const int shards = communicator_.size(kAxisContext);
  const int64_t shard = communicator_.index(kAxisContext);
  LATHE_CHECK(host.row_length % shards == 0, "rows of {} in {} shards", host.row_length, shards);
  const int64_t length = host.row_length / shards;
  prepared->shard_length = length;
  const int64_t begin = shard * length;
  const auto place = [&](const std::vector<int32_t>& values, Shape shape, const char* name) {
    Tensor out = device_.indices(shape, name);
    device_.memory->copy_from_host(out, values.data());
    return out;
  };
  // Per token `width` values; those of the positions that are here.
  const auto place_tokens = [&](const std::vector<int32_t>& values, int64_t width, const char* name) {
    const Shape shape = width == 1 ? Shape{host.rows * length} : Shape{host.rows * length, width};
    if (shards == 1) return place(values, shape, name);
    std::vector<int32_t> here;
    for (int64_t row = 0; row < host.rows; ++row) {
      const auto from = values.begin() + (row * host.row_length + begin) * width;
      here.insert(here.end(), from, from + length * width);
    }
    return place(here, shape, name);
  };
  prepared->ids = place_tokens(host.ids, 1, "batch.ids");
  prepared->segments = place_tokens(host.segment_ids, 1, "batch.segments");
  prepared->positions = place_tokens(host.positions, 1, "batch.positions");
  if (shards > 1) {
    prepared->context =
        place_context_shard(device_, host.segment_ids, host.rows, config_.linear_conv_kernel_dim, shards,
                            communicator_.index(kAxisContext));
  }
  for (const auto& layer : host.forced_experts) {
    prepared->forced_experts.push_back(
        place_tokens(layer, config_.num_experts_per_tok, "batch.forced_experts"));
  }

  prepare_scored(*prepared);
  return prepared;
}

BatchView Engine::batch_view(const PreparedMicroBatch& prepared) const {
  BatchView view{.rows = prepared.host.rows,
                 .row_length = prepared.shard_length,
                 .ids = prepared.ids,
                 .segments = prepared.segments,
                 .positions = prepared.positions,
                 .forced_experts = {}};
  prepared.context.describe(view);
  for (const Tensor& forced : prepared.forced_experts) view.forced_experts.emplace_back(forced);
  return view;
}

void Engine::run_fwd_bwd(const PreparedMicroBatch& prepared) {
  const double start = steady_seconds();
  std::vector<LayerSaved> saved;
  std::vector<ExpertCounts> counts;
  Tensor hidden = decoder_->forward(batch_view(prepared), keep_all_, &saved, &counts);
  Scored scored = gather_scored(prepared, hidden, Phase::kForward);
  hidden.reset();
  const LossResult loss = score_for_loss(prepared, scored);
  decoder_->prefetch_backward(saved);
  Tensor d_hidden = backward_from_scores(prepared, scored, loss);
  scored = {};
  decoder_->backward(batch_view(prepared), saved, std::move(d_hidden));

  store_->wait_reductions();

  expert_counts_.resize(counts.size(), ExpertCounts(static_cast<size_t>(config_.num_experts) + 1, 0));
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    for (size_t e = 0; e < counts[layer].size(); ++e) expert_counts_[layer][e] += counts[layer][e];
  }
  // All shards of a row know its loss; one of them counts it.
  if (communicator_.index(kAxisContext) == 0) count_loss(prepared.host, loss);
  accumulated_.fwd_bwd_s += steady_seconds() - start;
}

void Engine::count_loss(const MicroBatch& batch, const LossResult& loss) {
  accumulated_.stats.add(loss.stats);
  loss_sum_ += loss.sum;
  denominator_sum_ += loss.denom;
  std::vector<int64_t> lengths(static_cast<size_t>(batch.sequences()), 0);
  for (int64_t t = 0, sequence = -1; t < batch.tokens(); ++t) {
    if (batch.segment_ids[static_cast<size_t>(t)] == 0) continue;
    if (batch.positions[static_cast<size_t>(t)] == 0) ++sequence;
    ++lengths[static_cast<size_t>(sequence)];
  }
  accumulated_.flops += model_flops(config_, lengths, batch.scored());
}

void Engine::fwd_bwd(std::shared_ptr<PreparedMicroBatch> prepared) {
  LATHE_CHECK(optimizer_ != nullptr, "a frozen engine does not train");
  if (remat_choice_.empty()) plan_remat(prepared->host.rows, prepared->host.row_length);
  thread_->submit([this, prepared = std::move(prepared)] { run_fwd_bwd(*prepared); });
}

namespace {

// Largest tokens per expert over their mean, over the MoE layers.
double largest_load(const std::vector<ExpertCounts>& layers) {
  double largest = 0;
  for (const ExpertCounts& count : layers) {
    const auto tokens = std::span(count).first(count.size() - 1);
    int64_t total = 0;
    for (const int64_t c : tokens) total += c;
    if (total == 0) continue;
    const double mean = static_cast<double>(total) / static_cast<double>(tokens.size());
    largest = std::max(largest, static_cast<double>(*std::max_element(tokens.begin(), tokens.end())) / mean);
  }
  return largest;
}

// Of the (token, expert) pairs, those that found no room.
double dropped_share(const std::vector<ExpertCounts>& layers) {
  int64_t dropped = 0;
  int64_t all = 0;
  for (const ExpertCounts& count : layers) {
    dropped += count.back();
    for (const int64_t c : count) all += c;
  }
  return all == 0 ? 0 : static_cast<double>(dropped) / static_cast<double>(all);
}

}  // namespace

StepResult Engine::run_update(int64_t step) {
  const double asked = steady_seconds();
  saver_.wait();
  const double start = steady_seconds();
  const StepSums sums = sums_over_ranks();
  StepResult result = std::exchange(accumulated_, {});
  result.step = step;
  result.stats = sums.stats;
  result.flops = sums.flops;
  result.head_restarts = sums.head_restarts;
  result.save_wait_s = start - asked;
  result.denominator = step_denominator(options_.grpo, sums.denominator, sums.stats.active_sequences);
  result.loss = result.denominator > 0 ? sums.loss / result.denominator : 0;
  result.update =
      optimizer_->update(step - 1, result.denominator, result.loss, result.stats.nonfinite_tokens);
  const std::vector<ExpertCounts> counts = counts_over_ranks();
  result.moe_max_load = largest_load(counts);
  result.moe_dropped_frac = dropped_share(counts);
  expert_counts_.clear();
  loss_sum_ = 0;
  denominator_sum_ = 0;
  store_->clear_gradients();
  result.update_s = steady_seconds() - start;
  result.idle_s = thread_->take_idle_seconds();
  return result;
}

std::future<StepResult> Engine::update() {
  ++step_;
  auto promise = std::make_shared<std::promise<StepResult>>();
  std::future<StepResult> result = promise->get_future();
  thread_->submit_uncounted([this, step = step_, promise] { promise->set_value(run_update(step)); });
  return result;
}

StepResult Engine::result_of(std::future<StepResult>& update) {
  try {
    return update.get();
  } catch (const std::future_error&) {  // dropped from the queue: an earlier error stopped it
    thread_->wait();
    throw;
  }
}

double Engine::wait_for_device() {
  return thread_->wait();
}

TokenScores Engine::score(std::shared_ptr<PreparedMicroBatch> prepared) {
  TokenScores out;
  thread_->run([&] {
    Tensor hidden = decoder_->forward(batch_view(*prepared), {}, nullptr, nullptr);
    Scored scored = gather_scored(*prepared, hidden, Phase::kForward);
    out = score_only(*prepared, scored);
  });
  return out;
}

void Engine::write_gradients(const std::string& path) {
  thread_->run([&] {
    store_->reduce_replicas();
    store_->complete_gradients();
    const StepSums sums = sums_over_ranks();
    const double denominator = step_denominator(options_.grpo, sums.denominator, sums.stats.active_sequences);
    const double scale = denominator > 0 ? 1 / denominator : 0;
    write_hf_tensors(
        path, store_->layout(),
        [&](size_t parameter, int64_t first, std::span<float> to) {
          if (store_->parameters()[parameter].trains) store_->read_gradient(parameter, scale, first, to);
        },
        [&](const std::string& tensor) { return store_->tensor_trains(tensor); },
        file_share(Channel::kDevice));
  });
}

void Engine::check_finite_weights() {
  const IdleExcluded excluded(*thread_);
  thread_->run([&] {
    for (const Parameter& parameter : store_->parameters()) {
      if (!parameter.trains) continue;
      if (std::isfinite(device_.kernels.sum_of_squares(*device_.queue, parameter.master))) continue;
      model_error(fmt::format("step {}", step_),
                  fmt::format("the weights of {} are not finite any more: nothing is saved",
                              parameter.spec->slices.front().tensor),
                  "lower optimizer.learning_rate, or look at optimizer.eps and weight_decay");
    }
  });
}

void Engine::export_to(const HfFolder& source, const std::string& to) const {
  int64_t numbers = 0;
  for (const Parameter& parameter : store_->parameters()) {
    if (parameter.trains) numbers += parameter.spec->shape.size();
  }
  const Activity activity = log_.activity("saving weights", numbers, "numbers");
  export_model(
      source, store_->layout(),
      [&](size_t parameter, int64_t first, std::span<float> out) {
        store_->read_value(parameter, first, out);
        activity.advance(static_cast<int64_t>(out.size()));
      },
      [&](const std::string& tensor) { return store_->tensor_trains(tensor); }, to,
      file_share(Channel::kSaver));
}

}  // namespace lathe
