// The optimizer step over a parameter store: global norm, clip, skips, AdamW with f32 moments on f32 masters.
// All of it runs on the device thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "lathe/engine/optimizer_config.h"
#include "lathe/model/parameter_store.h"

namespace lathe {

// Statistics of the last `window` values that were finite.
class RollingWindow {
 public:
  explicit RollingWindow(int64_t window) : window_(window) {}
  // value - mean > factor * std over the window (unbiased std), once max(2, window / 2) values are in.
  [[nodiscard]] bool is_spike(double value, double factor) const;
  void add(double value);  // non-finite values are left out
  [[nodiscard]] const std::deque<double>& values() const { return values_; }

 private:
  int64_t window_;
  std::deque<double> values_;
};

struct UpdateResult {
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  bool skipped = false;
  std::string reason;  // of a skip, for the log
  bool stops_run =
      false;  // optimizer.skip_nonfinite: false, and the step was not finite: the caller ends the run
};

class Optimizer {
 public:
  Optimizer(Device& device, Communicator& communicator, ParameterStore& store, const OptimizerConfig& config,
            int64_t total_steps);

  // One step with gradients divided by `denominator` (0: skipped whole). `loss` feeds the spike window. `step` (0-based)
  // sets the learning rate. A skipped step changes nothing but the spike windows: no moments, no decay, no count.
  // nonfinite_tokens: scored tokens that the loss had to leave out; without skip_nonfinite they stop the run too.
  [[nodiscard]] UpdateResult update(int64_t step, double denominator, double loss,
                                    double nonfinite_tokens = 0);

  [[nodiscard]] int64_t applied_steps() const { return applied_; }
  // First and second moment of parameter i; absent when it does not train.
  [[nodiscard]] ConstView first_moment(size_t parameter) const { return states_[parameter].m; }
  [[nodiscard]] ConstView second_moment(size_t parameter) const { return states_[parameter].v; }
  [[nodiscard]] const RollingWindow& loss_window() const { return loss_window_; }
  [[nodiscard]] const RollingWindow& norm_window() const { return norm_window_; }
  // For a checkpoint that is read back: the moments are filled by the caller.
  [[nodiscard]] View first_moment(size_t parameter) { return states_[parameter].m; }
  [[nodiscard]] View second_moment(size_t parameter) { return states_[parameter].v; }
  void restore(int64_t applied_steps, const std::vector<double>& loss_window,
               const std::vector<double>& norm_window);

 private:
  struct Span {
    ElementRange elements;  // of the parameter's elements here
    bool decay = true;
  };
  struct State {
    Tensor m, v;
    std::vector<Span> spans;
  };
  [[nodiscard]] std::vector<Span> spans_of(const Parameter& parameter, const std::vector<bool>& decays) const;
  [[nodiscard]] std::string first_nonfinite() const;
  [[nodiscard]] double gradient_square() const;  // over all ranks
  void apply(double lr, double grad_scale);

  Device& device_;
  Communicator& communicator_;
  ParameterStore& store_;
  OptimizerConfig config_;
  int64_t total_steps_;
  int64_t applied_ = 0;
  std::vector<State> states_;
  RollingWindow loss_window_;
  RollingWindow norm_window_;
};

}  // namespace lathe
