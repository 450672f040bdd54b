#include "lathe/bench/step.h"

#include <algorithm>
#include <cmath>

#include "lathe/bench/measure.h"
#include "lathe/core/rng.h"
#include "lathe/data/packing.h"
#include "lathe/kernels/onednn_gemm.h"
#include "lathe/model/checkpoint.h"
#include "lathe/model/flops.h"

namespace lathe {
namespace {

// Of the whole gradient, in the norm.
constexpr double kTolerance = 1e-3;
constexpr double kTolerance16 = 8e-2;

// Lengths as a reasoning model makes them: log-normal around 400, a quarter of it prompt.
std::vector<Trajectory> synthetic_trajectories(const ModelConfig& config, int64_t tokens, int64_t longest) {
  const CounterRng rng(3, stream_of("trajectories"));
  std::vector<Trajectory> out;
  uint64_t draw = 0;
  for (int64_t total = 0; total < tokens;) {
    const double length = 400 * std::exp(0.7 * rng.normal(draw++));
    const int64_t n = std::clamp<int64_t>(static_cast<int64_t>(length), 2, longest);
    Trajectory t;
    t.line = static_cast<int64_t>(out.size()) + 1;
    for (int64_t i = 0; i < n; ++i) {
      auto& ids = i < std::max<int64_t>(n / 4, 1) ? t.prompt_ids : t.completion_ids;
      ids.push_back(static_cast<int32_t>(rng.uniform(draw++) * static_cast<double>(config.vocab_size)));
    }
    t.completion_mask.assign(t.completion_ids.size(), 1);
    t.advantage = {rng.normal(draw++)};
    total += n;
    out.push_back(std::move(t));
  }
  return out;
}

std::vector<MicroBatch> micro_batches_of(const std::vector<Trajectory>& trajectories, int64_t row_length,
                                         int64_t rows) {
  std::vector<int64_t> lengths;
  std::vector<std::vector<double>> advantages;
  for (const Trajectory& t : trajectories) {
    lengths.push_back(t.tokens());
    advantages.push_back(t.advantage);
  }
  PackingOptions packing;
  packing.row_length = row_length;
  packing.rows_per_micro_batch = rows;
  std::vector<MicroBatch> out;
  for (const PackedMicroBatch& packed : pack(lengths, packing)) {
    out.push_back(build_micro_batch(packed, trajectories, advantages, row_length, {}));
  }
  return out;
}

// A trainer with random weights that depend on the configuration alone.
class BenchEngine {
 public:
  BenchEngine(const ModelConfig& config, const DeviceOptions& device, const EngineOptions& options)
      : config_(config),
        layout_(layout_from_names(config_, usual_naming(config_))),
        device_(device),
        communicator_(make_solo_communicator()),
        log_(false),
        engine_(device_, *communicator_, config_, layout_, options, log_) {
    engine_.device_thread().run([&] {
      for (size_t i = 0; i < engine_.store().parameters().size(); ++i) {
        const ParameterSpec& spec = *engine_.store().parameters()[i].spec;
        const CounterRng rng(4, stream_of(spec.name()));
        std::vector<float> values(static_cast<size_t>(spec.shape.size()));
        for (size_t j = 0; j < values.size(); ++j) {
          values[j] = initial_value(config_, spec.role, rng, static_cast<int64_t>(j));
        }
        engine_.store().write_value(i, values);
      }
    });
  }

  Engine& engine() { return engine_; }
  Device& device() { return device_; }

  std::vector<float> gradient(const std::vector<MicroBatch>& micro_batches) {
    for (const MicroBatch& m : micro_batches) engine_.fwd_bwd(engine_.prepare(m));
    std::vector<float> out;
    engine_.device_thread().run([&] {
      engine_.store().complete_gradients();
      for (size_t i = 0; i < engine_.store().parameters().size(); ++i) {
        const auto count = static_cast<size_t>(engine_.store().parameters()[i].spec->shape.size());
        out.resize(out.size() + count);
        engine_.store().read_gradient(i, 1, 0, std::span(out).last(count));
      }
    });
    return out;
  }

 private:
  ModelConfig config_;
  ParameterLayout layout_;
  Device device_;
  std::unique_ptr<Communicator> communicator_;
  Log log_;
  Engine engine_;
};

EngineOptions engine_options(const StepBenchOptions& options) {
  EngineOptions out;
  out.compute = options.compute;
  out.remat = options.remat;
  out.memory_budget = static_cast<int64_t>(0.7 * static_cast<double>(available_memory_bytes()));
  out.optimizer.learning_rate = 1e-6;
  return out;
}

DeviceOptions device_options(const StepBenchOptions& options, bool reference) {
  return {.name = reference ? "ref" : "cpu",
          .threads = reference ? 1 : options.threads,
          .isa = options.isa,
          .poison = false,
          .float_type = reference ? DType::kF64 : DType::kF32};
}

// One layer of every kind, few words.
ModelConfig small_model(const ModelConfig& config) {
  ModelConfig small = config;
  small.layers.clear();
  for (const LayerKind& kind : config.layers) {
    const bool there = std::any_of(small.layers.begin(), small.layers.end(), [&](const LayerKind& other) {
      return other.mixer == kind.mixer && other.mlp == kind.mlp;
    });
    if (!there) small.layers.push_back(kind);
  }
  small.vocab_size = std::min<int64_t>(config.vocab_size, 256);
  return small;
}

std::string difference(const ModelConfig& config, const StepBenchOptions& options) {
  const ModelConfig small = small_model(config);
  const auto batches = micro_batches_of(synthetic_trajectories(small, 20, 12), 32, 1);
  BenchEngine fast(small, device_options(options, false), engine_options(options));
  BenchEngine plain(small, device_options(options, true), engine_options(options));
  const std::vector<float> want = plain.gradient(batches);
  const std::vector<float> got = fast.gradient(batches);
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  const double relative = std::sqrt(error / std::max(size, 1e-300));
  const double tolerance = options.compute == DType::kBF16 ? kTolerance16 : kTolerance;
  if (relative <= tolerance) return "";
  return fmt::format("the gradient of a small model is {:.2g} from the reference, expected at most {:.0g}",
                     relative, tolerance);
}

double gemm_rate(const StepBenchOptions& options) {
  constexpr int64_t kExtent = 2048;
  LibraryGemm gemm(
      {.type = options.compute, .m = kExtent, .n = kExtent, .k = kExtent, .threads = options.threads});
  const auto bytes = static_cast<size_t>(kExtent * kExtent * dtype_size(options.compute));
  const std::vector<std::byte> a(bytes, std::byte{0x3c});
  const std::vector<std::byte> b(bytes, std::byte{0x3c});
  std::vector<float> c(static_cast<size_t>(kExtent * kExtent), 0.0F);
  gemm.run(a.data(), b.data(), c.data());
  std::vector<double> seconds;
  for (int i = 0; i < options.repeats; ++i) {
    seconds.push_back(seconds_of([&] { gemm.run(a.data(), b.data(), c.data()); }));
  }
  return 2.0 * static_cast<double>(kExtent * kExtent * kExtent) / median(seconds);
}

}  // namespace

StepBenchReport bench_step(const StepBenchOptions& options) {
  StepBenchReport report;
  report.options = options;
  std::vector<std::string> warnings;
  const ModelConfig config = read_model_config(options.config_path, &warnings);
  report.dim = config.hidden_size;
  report.vocab = config.vocab_size;
  report.parameters = parameter_count(config);
  report.fault = difference(config, options);
  report.verified = report.fault.empty();
  if (!report.verified) return report;

  const auto trajectories =
      synthetic_trajectories(config, options.tokens, std::min<int64_t>(1024, options.row_length));
  const auto batches = micro_batches_of(trajectories, options.row_length, options.rows_per_micro_batch);
  for (const MicroBatch& m : batches) {
    report.tokens += m.real_tokens;
    report.computed_tokens += m.tokens();
    report.scored_tokens += m.scored();
  }
  BenchEngine bench(config, device_options(options, false), engine_options(options));
  Engine& engine = bench.engine();
  engine.plan_remat(options.rows_per_micro_batch, options.row_length);
  report.remat = engine.remat_choice();
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> update;
  for (int i = 0; i <= options.repeats; ++i) {  // the first is the warm-up
    const double scoring = seconds_of([&] {
      for (const MicroBatch& m : batches) static_cast<void>(engine.score(engine.prepare(m)));
    });
    for (const MicroBatch& m : batches) engine.fwd_bwd(engine.prepare(m));
    std::future<StepResult> future = engine.update();
    const StepResult result = engine.result_of(future);
    report.flops = result.flops;
    if (i == 0) continue;
    forward.push_back(scoring);
    backward.push_back(result.fwd_bwd_s - scoring);
    update.push_back(result.update_s);
  }
  report.forward_s = median(forward);
  report.backward_s = median(backward);
  report.update_s = median(update);
  const MemoryUse peak = bench.device().memory->peak();
  report.peak_extra_bytes = peak.of(MemoryKind::kActivations) + peak.of(MemoryKind::kScratch);
  report.gemm_flops_per_s = gemm_rate(options);
  return report;
}

}  // namespace lathe
