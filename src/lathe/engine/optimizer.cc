#include "lathe/engine/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>

namespace lathe {

bool RollingWindow::is_spike(double value, double factor) const {
  const auto count = static_cast<int64_t>(values_.size());
  if (window_ <= 0 || count + 1 < std::max<int64_t>(2, window_ / 2) || count < 2) return false;
  double mean = 0;
  for (const double v : values_) mean += v;
  mean /= static_cast<double>(count);
  double square = 0;
  for (const double v : values_) square += (v - mean) * (v - mean);
  return value - mean > factor * std::sqrt(square / static_cast<double>(count - 1));
}

void RollingWindow::add(double value) {
  if (window_ <= 0 || !std::isfinite(value)) return;
  values_.push_back(value);
  while (static_cast<int64_t>(values_.size()) > window_) values_.pop_front();
}

Optimizer::Optimizer(Device& device, Communicator& communicator, ParameterStore& store,
                     const OptimizerConfig& config, int64_t total_steps)
    : device_(device),
      communicator_(communicator),
      store_(store),
      config_(config),
      total_steps_(total_steps),
      loss_window_(config.spike_window),
      norm_window_(config.spike_window) {
  std::vector<std::regex> excluded;
  for (const std::string& pattern : config_.weight_decay_exclude) {
    try {
      excluded.emplace_back(pattern);
    } catch (const std::regex_error& e) {
      config_error("optimizer.weight_decay_exclude",
                   fmt::format("'{}' is not a regular expression: {}", pattern, e.what()),
                   "patterns are ECMAScript expressions searched in Hugging Face tensor names");
    }
  }
  const auto decays = [&excluded](const std::string& name) {
    return std::none_of(excluded.begin(), excluded.end(),
                        [&name](const std::regex& pattern) { return std::regex_search(name, pattern); });
  };
  for (const Parameter& parameter : store_.parameters()) {
    State& state = states_.emplace_back();
    if (!parameter.trains) continue;
    std::vector<bool> slice_decays;
    for (const HfSlice& slice : parameter.spec->slices) slice_decays.push_back(decays(slice.tensor));
    state.spans = spans_of(parameter, slice_decays);
    const Shape shape = parameter.gradient.view().shape;
    const DType type = device_.float_type();
    state.m = device_.memory->allocate(type, shape, MemoryKind::kOptimizer, parameter.spec->name() + " m");
    state.v = device_.memory->allocate(type, shape, MemoryKind::kOptimizer, parameter.spec->name() + " v");
    device_.kernels.fill(*device_.queue, 0, state.m);
    device_.kernels.fill(*device_.queue, 0, state.v);
  }
}

void Optimizer::restore(int64_t applied_steps, const std::vector<double>& loss_window,
                        const std::vector<double>& norm_window) {
  applied_ = applied_steps;
  loss_window_ = RollingWindow(config_.spike_window);
  norm_window_ = RollingWindow(config_.spike_window);
  for (const double value : loss_window) loss_window_.add(value);
  for (const double value : norm_window) norm_window_.add(value);
}

std::vector<Optimizer::Span> Optimizer::spans_of(const Parameter& parameter,
                                                 const std::vector<bool>& decays) const {
  std::vector<Span> spans;
  const int64_t width = parameter.spec->row_elements;
  for (size_t i = 0; i < parameter.spec->slices.size(); ++i) {
    const HfSlice& slice = parameter.spec->slices[i];
    if (!store_.tensor_trains(slice.tensor)) continue;
    const ElementRange here = parameter.here(slice.row * width, (slice.row + slice.rows) * width);
    if (here.begin < here.end) spans.push_back({here, decays[i]});
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.elements.begin < b.elements.begin; });
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (!merged.empty() && merged.back().elements.end == span.elements.begin &&
        merged.back().decay == span.decay) {
      merged.back().elements.end = span.elements.end;
    } else {
      merged.push_back(span);
    }
  }
  return merged;
}

// Shards count where they are, whole parameters once.
double Optimizer::gradient_square() const {
  double cut = 0;
  double whole = 0;
  for (const Parameter& parameter : store_.parameters()) {
    if (!parameter.trains) continue;
    const double square = device_.kernels.sum_of_squares(*device_.queue, parameter.gradient);
    (parameter.spec->is_matrix() ? cut : whole) += square;
  }
  communicator_.all_reduce_sum(
      {.axes = kAxesDense, .phase = Phase::kUpdate, .tensor = "grad_norm", .channel = Channel::kDevice},
      std::span(&cut, 1));
  return cut + whole;
}

// On any rank: each looks at its own shards.
std::string Optimizer::first_nonfinite() const {
  const std::vector<Parameter>& parameters = store_.parameters();
  size_t first = 0;
  while (first < parameters.size() &&
         (!parameters[first].trains ||
          std::isfinite(device_.kernels.sum_of_squares(*device_.queue, parameters[first].gradient)))) {
    ++first;
  }
  double before = -static_cast<double>(first);
  communicator_.all_reduce_max(
      {.axes = kAxisAll, .phase = Phase::kUpdate, .tensor = "first_nonfinite", .channel = Channel::kDevice},
      std::span(&before, 1));
  first = static_cast<size_t>(-before);
  return first == parameters.size() ? "none" : parameters[first].spec->slices.front().tensor;
}

UpdateResult Optimizer::update(int64_t step, double denominator, double loss, double nonfinite_tokens) {
  UpdateResult result;
  result.learning_rate = learning_rate(config_, step, total_steps_);
  store_.reduce_replicas();
  store_.complete_gradients();
  if (nonfinite_tokens > 0 && (!config_.skip_nonfinite || !(denominator > 0))) {
    result.skipped = true;
    result.stops_run = !config_.skip_nonfinite;
    result.reason = fmt::format("{} scored tokens have log-probs that are not finite", nonfinite_tokens);
    return result;
  }
  if (!(denominator > 0)) {
    result.skipped = true;
    result.reason = "no token is left in the loss (denominator 0)";
    return result;
  }
  const double square = gradient_square();
  result.grad_norm = std::sqrt(square) / denominator;

  if (!std::isfinite(result.grad_norm) || !std::isfinite(loss)) {
    result.skipped = true;
    result.reason =
        fmt::format("loss {} and gradient norm {} are not both finite; first tensor with such a gradient: {}",
                    loss, result.grad_norm, first_nonfinite());
    result.stops_run = !config_.skip_nonfinite;
    return result;
  }
  const bool spike = loss_window_.is_spike(loss, config_.spike_factor) ||
                     norm_window_.is_spike(result.grad_norm, config_.spike_factor);
  loss_window_.add(loss);
  norm_window_.add(result.grad_norm);
  if (spike) {
    result.skipped = true;
    result.reason = fmt::format("loss {:.4g} or gradient norm {:.4g} is a spike over the last {} steps", loss,
                                result.grad_norm, config_.spike_window);
    return result;
  }
  double scale = 1 / denominator;
  if (config_.max_grad_norm > 0 && result.grad_norm >= config_.max_grad_norm) {
    scale *= config_.max_grad_norm / result.grad_norm;
  }
  ++applied_;
  apply(result.learning_rate, scale);
  return result;
}

void Optimizer::apply(double lr, double grad_scale) {
  AdamWParams params{.lr = lr,
                     .beta1 = config_.beta1,
                     .beta2 = config_.beta2,
                     .eps = config_.eps,
                     .bias1 = 1 - std::pow(config_.beta1, static_cast<double>(applied_)),
                     .bias2 = 1 - std::pow(config_.beta2, static_cast<double>(applied_)),
                     .grad_scale = grad_scale};
  for (size_t i = 0; i < states_.size(); ++i) {
    Parameter& parameter = store_.parameters()[i];
    const Shape flat{parameter.shard.size()};
    for (const Span& span : states_[i].spans) {
      params.weight_decay = span.decay ? config_.weight_decay : 0;
      const int64_t count = span.elements.end - span.elements.begin;
      const auto part = [&](View view) {
        return view.empty() ? view : view.reshape(flat).rows(span.elements.begin, count);
      };
      device_.kernels.adamw(*device_.queue, params, part(parameter.gradient), part(states_[i].m),
                            part(states_[i].v), part(parameter.master), part(parameter.weight));
    }
  }
}

}  // namespace lathe
