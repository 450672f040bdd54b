// The optimizer against recorded torch AdamW runs, and the rules of skipping.
#include "lathe/engine/optimizer.h"

#include <cmath>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/kernels/access.h"

#include "support/kernel_test.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

using Json = nlohmann::json;

ParameterLayout layout_of(const Json& shapes) {
  ParameterLayout layout;
  int layer = 0;
  for (const auto& [name, dims] : shapes.items()) {
    const Shape shape = dims.size() == 1 ? Shape{dims[0].get<int64_t>()}
                                         : Shape{dims[0].get<int64_t>(), dims[1].get<int64_t>()};
    ParameterSpec spec;
    spec.role = ParameterRole::kDown;
    spec.layer = layer++;
    spec.shape = shape;
    spec.row_elements = shape.rank() == 1 ? 1 : shape[1];
    spec.slices = {{name, 0, 0, spec.rows()}};
    layout.hf_tensors[name] = shape;
    layout.parameters.push_back(spec);
  }
  return layout;
}

OptimizerConfig config_of(const Json& json) {
  OptimizerConfig config;
  config.learning_rate = json.value("learning_rate", config.learning_rate);
  config.beta1 = json.value("beta1", config.beta1);
  config.beta2 = json.value("beta2", config.beta2);
  config.eps = json.value("eps", config.eps);
  config.weight_decay = json.value("weight_decay", config.weight_decay);
  config.weight_decay_exclude = json.value("weight_decay_exclude", config.weight_decay_exclude);
  config.max_grad_norm = json.value("max_grad_norm", config.max_grad_norm);
  config.warmup_steps = json.value("warmup_steps", config.warmup_steps);
  const std::string schedule = json.value("schedule", "constant");
  config.schedule = schedule == "cosine"   ? LrSchedule::kCosine
                    : schedule == "linear" ? LrSchedule::kLinear
                                           : LrSchedule::kConstant;
  config.min_lr_ratio = json.value("min_lr_ratio", config.min_lr_ratio);
  return config;
}

void write(Device& device, View view, const std::vector<double>& values) {
  const Tensor from = to_device(device, HostArray(view.shape, values));
  device.kernels.cast(*device.queue, from, view);
}

// Gradients are given as sums over `denominator`: one division, in the update.
void run_scenario(const Json& scenario, Device& device, double tolerance) {
  constexpr double kDenominator = 4;
  const std::unique_ptr<Communicator> communicator = make_solo_communicator();
  const ParameterLayout layout = layout_of(scenario["shapes"]);
  ParameterStore store(device, *communicator, layout, {});
  Optimizer optimizer(device, *communicator, store, config_of(scenario["config"]),
                      scenario["config"]["steps"]);
  for (Parameter& parameter : store.parameters()) {
    write(device, parameter.master, scenario["initial"][parameter.spec->slices[0].tensor]);
  }
  for (size_t step = 0; step < scenario["gradients"].size(); ++step) {
    for (Parameter& parameter : store.parameters()) {
      std::vector<double> gradient = scenario["gradients"][step][parameter.spec->slices[0].tensor];
      for (double& g : gradient) g *= kDenominator;
      write(device, store.target(ParameterRole::kDown, parameter.spec->layer), gradient);
    }
    const UpdateResult result = optimizer.update(static_cast<int64_t>(step), kDenominator, 0.0);
    store.clear_gradients();
    EXPECT_FALSE(result.skipped);
    for (const Parameter& parameter : store.parameters()) {
      const std::string& name = parameter.spec->slices[0].tensor;
      expect_near(to_host(device, parameter.master),
                  HostArray(parameter.spec->shape,
                            scenario["expected"]["parameters"][step][name].get<std::vector<double>>()),
                  tolerance,
                  scenario["name"].get<std::string>() + " step " + std::to_string(step) + " " + name);
    }
  }
}

TEST(Optimizer, EqualsTorchAdamW) {
  std::ifstream in(std::string(LATHE_GOLDENS) + "/adamw.json");
  const Json golden = Json::parse(in);
  ASSERT_GE(golden["scenarios"].size(), 3U);
  for (const Json& scenario : golden["scenarios"]) {
    Device ref = make_ref_device(DType::kF64);
    run_scenario(scenario, ref, 1e-6);
    for (const Isa isa : isas_at_hand()) {
      Device cpu = make_cpu_device(isa);
      run_scenario(scenario, cpu, 2e-6);
    }
  }
}

TEST(Schedule, WarmupCosineAndClampAfterTheEnd) {
  OptimizerConfig config;
  config.learning_rate = 3e-5;
  config.warmup_steps = 10;
  config.schedule = LrSchedule::kCosine;
  EXPECT_EQ(learning_rate(config, 0, 100), 0);
  EXPECT_NEAR(learning_rate(config, 1, 100), 3e-6, 1e-12);
  EXPECT_NEAR(learning_rate(config, 10, 100), 3e-5, 1e-12);
  EXPECT_NEAR(learning_rate(config, 55, 100), 1.6261746e-5, 1e-12);
  EXPECT_NEAR(learning_rate(config, 99, 100), 3e-6, 1e-12);
  EXPECT_NEAR(learning_rate(config, 110, 100), 3e-6, 1e-12);
}

TEST(Schedule, LinearEndsAtTheRatio) {
  OptimizerConfig config;
  config.learning_rate = 1;
  config.schedule = LrSchedule::kLinear;
  config.min_lr_ratio = 0.2;
  EXPECT_NEAR(learning_rate(config, 0, 11), 1, 1e-12);
  EXPECT_NEAR(learning_rate(config, 5, 11), 0.6, 1e-12);
  EXPECT_NEAR(learning_rate(config, 10, 11), 0.2, 1e-12);
}

TEST(RollingWindow, SpikesAreJudgedOnceTheWindowIsHalfFullAndNonFiniteValuesStayOut) {
  RollingWindow window(8);
  for (int i = 0; i < 4; ++i) window.add(1 + 0.01 * i);
  EXPECT_TRUE(window.is_spike(5, 6));
  EXPECT_FALSE(window.is_spike(1.02, 6));
  window.add(std::numeric_limits<double>::quiet_NaN());
  window.add(std::numeric_limits<double>::infinity());
  EXPECT_EQ(window.values().size(), 4U);
  RollingWindow young(8);
  young.add(1);
  EXPECT_FALSE(young.is_spike(100, 6));
}

struct SkipCase {
  ModelConfig config = tiny_config(hybrid_layers());
  TinyEngine tiny{config, cpu_f32(1), tiny_options()};
  std::vector<MicroBatch> batches =
      tiny_batches(random_trajectories(config, {9, 12}, 3), {.rows = 1, .row_length = 32}, true);
};

TEST(Skip, NonFiniteGradientChangesNothingAndTheNextStepIsAsIfItNeverWas) {
  SkipCase a;
  SkipCase b;
  static_cast<void>(a.tiny.step(a.batches));
  static_cast<void>(b.tiny.step(b.batches));
  const auto before = a.tiny.values();
  // One weight is infinite for one step.
  const View table = a.tiny.engine().store().parameters()[0].master;
  const float kept = elements<float>(table)[0];
  std::vector<MicroBatch> poisoned = a.batches;
  elements<float>(table)[0] = std::numeric_limits<float>::infinity();
  poisoned[0].ids.assign(poisoned[0].ids.size(), 0);
  const StepResult skipped = a.tiny.step(poisoned);
  elements<float>(table)[0] = kept;
  EXPECT_TRUE(skipped.update.skipped);
  EXPECT_EQ(a.tiny.values(), before);
  static_cast<void>(a.tiny.step(a.batches));
  static_cast<void>(b.tiny.step(b.batches));
  EXPECT_EQ(a.tiny.values(), b.tiny.values());
}

TEST(Skip, DenominatorZeroSkipsTheWholeStepDecayIncluded) {
  SkipCase a;
  const auto before = a.tiny.values();
  for (MicroBatch& batch : a.batches) {
    for (double& advantage : batch.advantage) advantage = std::numeric_limits<double>::quiet_NaN();
  }
  const StepResult result = a.tiny.step(a.batches);
  EXPECT_TRUE(result.update.skipped);
  EXPECT_EQ(result.denominator, 0);
  EXPECT_EQ(a.tiny.values(), before);
}

// A frozen leaf has no gradient, stays as it is and does not enter the norm.
TEST(Trainable, FrozenTensorsStayAndLeaveTheNorm) {
  const ModelConfig config = tiny_config(hybrid_layers());
  const auto batches =
      tiny_batches(random_trajectories(config, {9, 12}, 3), {.rows = 1, .row_length = 32}, true);
  EngineOptions options = tiny_options();
  TinyEngine all(config, cpu_f32(1), options);
  const auto gradients = all.gradients(batches);
  options.trainable = {"self_attn", "experts\\.2\\.up_proj"};
  TinyEngine some(config, cpu_f32(1), options);
  const auto before = some.values();
  const StepResult result = some.step(batches);
  const auto after = some.values();
  double square = 0;
  const auto& parameters = some.engine().store().parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const ParameterSpec& spec = *parameters[p].spec;
    for (const HfSlice& slice : spec.slices) {
      const bool trains = slice.tensor.find("self_attn") != std::string::npos ||
                          slice.tensor.find("experts.2.up_proj") != std::string::npos;
      const auto begin = static_cast<std::ptrdiff_t>(slice.row * spec.row_elements);
      const auto end = begin + static_cast<std::ptrdiff_t>(slice.rows * spec.row_elements);
      const bool same =
          std::equal(before[p].begin() + begin, before[p].begin() + end, after[p].begin() + begin);
      EXPECT_EQ(same, !trains) << slice.tensor;
      for (auto i = begin; trains && i < end; ++i)
        square += std::pow(gradients[p][static_cast<size_t>(i)], 2);
    }
    EXPECT_EQ(parameters[p].gradient.empty(), !parameters[p].trains) << spec.name();
  }
  EXPECT_NEAR(result.update.grad_norm, std::sqrt(square) / result.denominator,
              1e-5 * result.update.grad_norm);
}

}  // namespace
}  // namespace lathe::test
