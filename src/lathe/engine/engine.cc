#include "lathe/engine/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lathe/engine/scored.h"
#include "lathe/model/checkpoint.h"
#include "lathe/model/flops.h"

namespace lathe {

Engine::Engine(Device& device, Communicator& communicator, const ModelConfig& config,
               const ParameterLayout& layout, const EngineOptions& options, Log& log)
    : device_(device), communicator_(communicator), config_(config), options_(options), log_(log) {
  thread_ = std::make_unique<DeviceThread>(options_.max_inflight);
  thread_->run([&] {
    store_ = std::make_unique<ParameterStore>(device_, communicator_, layout,
                                              ParameterStoreOptions{.weight_dtype = options_.weight_dtype,
                                                                    .trainable = options_.trainable,
                                                                    .frozen = options_.frozen});
    if (!options_.frozen) {
      optimizer_ = std::make_unique<Optimizer>(device_, communicator_, *store_, options_.optimizer,
                                               options_.total_steps);
    }
    context_ = std::make_unique<ModelContext>(
        ModelContext{device_, communicator_, *store_, config_,
                     DecoderOptions{.compute = options_.compute,
                                    .delta_rule_chunk = options_.delta_rule_chunk,
                                    .exclude_padding_from_routing = options_.exclude_padding_from_routing}});
    decoder_ = std::make_unique<Decoder>(*context_);
  });
}

Engine::~Engine() = default;

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
  const auto place = [&](const std::vector<int32_t>& values, const char* name) {
    Tensor out = device_.indices(Shape{static_cast<int64_t>(values.size())}, name);
    device_.memory->copy_from_host(out, values.data());
    return out;
  };
  prepared->ids = place(host.ids, "batch.ids");
  prepared->segments = place(host.segment_ids, "batch.segments");
  prepared->positions = place(host.positions, "batch.positions");
  prepared->hidden_index = place(host.hidden_index, "batch.hidden_index");
  prepared->targets = place(host.targets, "batch.targets");
  prepared->temperature =
      upload(std::vector<double>(host.temperature.begin(), host.temperature.end()), "batch.temperature");
  for (const auto& layer : host.forced_experts) {
    Tensor forced =
        device_.indices(Shape{host.tokens(), config_.num_experts_per_tok}, "batch.forced_experts");
    device_.memory->copy_from_host(forced, layer.data());
    prepared->forced_experts.push_back(std::move(forced));
  }
  return prepared;
}

BatchView Engine::batch_view(const PreparedMicroBatch& prepared) const {
  BatchView view{.rows = prepared.host.rows,
                 .row_length = prepared.host.row_length,
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
  Tensor d_hidden = backward_from_scores(prepared, scored, loss);
  scored = {};
  decoder_->backward(batch_view(prepared), saved, std::move(d_hidden));

  StepResult& step = accumulated_;
  step.stats.add(loss.stats);
  loss_sum_ += loss.sum;
  denominator_sum_ += loss.denom;
  expert_counts_.resize(counts.size(), ExpertCounts(static_cast<size_t>(config_.num_experts), 0));
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    for (size_t e = 0; e < counts[layer].size(); ++e) expert_counts_[layer][e] += counts[layer][e];
  }
  std::vector<int64_t> lengths(static_cast<size_t>(prepared.host.sequences()), 0);
  for (int64_t t = 0, sequence = -1; t < prepared.host.tokens(); ++t) {
    if (prepared.host.segment_ids[static_cast<size_t>(t)] == 0) continue;
    if (prepared.host.positions[static_cast<size_t>(t)] == 0) ++sequence;
    ++lengths[static_cast<size_t>(sequence)];
  }
  step.flops += model_flops(config_, lengths, prepared.host.scored());
  step.fwd_bwd_s += steady_seconds() - start;
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
    int64_t total = 0;
    for (const int64_t c : count) total += c;
    if (total == 0) continue;
    const double mean = static_cast<double>(total) / static_cast<double>(count.size());
    largest = std::max(largest, static_cast<double>(*std::max_element(count.begin(), count.end())) / mean);
  }
  return largest;
}

}  // namespace

StepResult Engine::run_update(int64_t step) {
  const double asked = steady_seconds();
  saver_.wait();
  const double start = steady_seconds();
  std::array<double, 3> sums{loss_sum_, denominator_sum_, accumulated_.stats.active_sequences};
  communicator_.all_reduce_sum({.axes = kAxisAll, .phase = Phase::kUpdate, .tensor = "loss"}, sums);
  StepResult result = std::exchange(accumulated_, {});
  result.step = step;
  result.save_wait_s = start - asked;
  result.denominator = step_denominator(options_.grpo, sums[1], sums[2]);
  result.loss = result.denominator > 0 ? sums[0] / result.denominator : 0;
  result.update =
      optimizer_->update(step - 1, result.denominator, result.loss, result.stats.nonfinite_tokens);
  result.moe_max_load = largest_load(std::exchange(expert_counts_, {}));
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
    store_->complete_gradients();
    std::array<double, 2> sums{denominator_sum_, accumulated_.stats.active_sequences};
    communicator_.all_reduce_sum({.axes = kAxisAll, .phase = Phase::kUpdate, .tensor = "loss"}, sums);
    const double denominator = step_denominator(options_.grpo, sums[0], sums[1]);
    const double scale = denominator > 0 ? 1 / denominator : 0;
    write_hf_tensors(
        path, store_->layout(),
        [&](size_t parameter, int64_t first, std::span<float> to) {
          if (store_->parameters()[parameter].trains) store_->read_gradient(parameter, scale, first, to);
        },
        [&](const std::string& tensor) { return store_->tensor_trains(tensor); });
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
      [&](const std::string& tensor) { return store_->tensor_trains(tensor); }, to);
}

}  // namespace lathe
