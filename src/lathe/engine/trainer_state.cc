// What a checkpoint holds of the engine beside the model: moments, exact masters, and in the middle of a step the gradients
// and sums accumulated so far. Tensors keep the device's type, so that nothing is rounded.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "lathe/engine/checkpoint_files.h"
#include "lathe/engine/engine.h"
#include "lathe/io/files.h"
#include "lathe/io/safetensors.h"

namespace lathe {
namespace {

constexpr const char* kOptimizerName = "optimizer.safetensors";
constexpr const char* kGradientsName = "gradients.safetensors";

const char* file_type(DType type) {
  return type == DType::kF64 ? "F64" : "F32";
}

std::vector<int64_t> extents_of(const Shape& shape) {
  std::vector<int64_t> extents;
  for (int i = 0; i < shape.rank(); ++i) extents.push_back(shape[i]);
  return extents;
}

TensorToWrite device_tensor(const std::string& name, ConstView view, DeviceMemory& memory) {
  TensorToWrite out{
      .name = name, .dtype = file_type(view.dtype), .shape = extents_of(view.shape), .produce = {}};
  out.produce_part = [view, &memory](uint64_t begin, std::byte* to, uint64_t bytes) {
    const int64_t size = dtype_size(view.dtype);
    const ConstView flat = view.reshape(Shape{view.size()});
    memory.copy_to_host(to,
                        flat.rows(static_cast<int64_t>(begin) / size, static_cast<int64_t>(bytes) / size));
  };
  return out;
}

TensorToWrite host_tensor(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                          const void* data, size_t bytes) {
  return {.name = name, .dtype = dtype, .shape = std::move(shape), .produce = [data, bytes](std::byte* to) {
            std::memcpy(to, data, bytes);
          }};
}

int64_t bytes_of(const std::vector<TensorToWrite>& tensors) {
  int64_t bytes = 0;
  for (const TensorToWrite& tensor : tensors) {
    int64_t size = safetensors_dtype_size(tensor.dtype);
    for (const int64_t extent : tensor.shape) size *= extent;
    bytes += size;
  }
  return bytes;
}

// Counts what is written of device tensors.
void show_writing(std::vector<TensorToWrite>& tensors, const Activity& activity) {
  for (TensorToWrite& tensor : tensors) {
    if (!tensor.produce_part) continue;
    tensor.produce_part = [produce = std::move(tensor.produce_part), &activity](uint64_t begin, std::byte* to,
                                                                                uint64_t bytes) {
      produce(begin, to, bytes);
      activity.advance(static_cast<int64_t>(bytes));
    };
  }
}

// The tensors of one file of the trainer's state, read with checks.
class StateFile {
 public:
  explicit StateFile(const std::string& path) : file_(path) {}

  [[nodiscard]] bool has(const std::string& name) const { return file_.tensors().count(name) != 0; }
  void read(const std::string& name, View to, DeviceMemory& memory) const {
    const std::byte* from = find(name, file_type(to.dtype), extents_of(to.shape));
    memory.copy_from_host(to, from);
    file_.release(from, static_cast<uint64_t>(to.bytes()));  // not in memory twice
  }
  template <typename T>
  std::vector<T> read_host(const std::string& name, const char* dtype,
                           const std::vector<int64_t>& shape) const {
    const std::byte* from = find(name, dtype, shape);
    std::vector<T> out(static_cast<size_t>(file_.tensors().at(name).elements()));
    if (!out.empty()) std::memcpy(out.data(), from, out.size() * sizeof(T));
    return out;
  }

 private:
  [[nodiscard]] const std::byte* find(const std::string& name, const char* dtype,
                                      const std::vector<int64_t>& shape) const {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) {
      model_error(file_.path(), fmt::format("has no tensor {}", name), kCheckpointRemedy);
    }
    const TensorInfo& info = found->second;
    if (info.dtype != dtype || info.shape != shape) {
      model_error(file_.path(),
                  fmt::format("tensor {} is {} {}; {} {} is needed", name, info.dtype, shape_text(info.shape),
                              dtype, shape_text(shape)),
                  kCheckpointRemedy);
    }
    return file_.bytes(info);
  }

  SafetensorsFile file_;
};

// The model's files hold the master bit for bit: it need not be stored again.
bool is_exact_in(const HfFolder& source, const Parameter& parameter) {
  if (parameter.master.view().dtype != DType::kF32) return false;
  return std::all_of(parameter.spec->slices.begin(), parameter.spec->slices.end(),
                     [&](const HfSlice& slice) { return source.info(slice.tensor).dtype == "F32"; });
}

// The tensors of a step in progress that are not gradients.
constexpr const char* kSums = "step.sums";  // loss, denominator, FLOPs, seconds
constexpr const char* kStats = "step.loss_stats";
constexpr const char* kExpertCounts = "step.expert_counts";

}  // namespace

void Engine::start_save(std::function<void()> write) {
  finish_save();
  thread_->wait();
  saver_.start(std::move(write));
}

void Engine::finish_save() {
  const IdleExcluded excluded(*thread_);
  saver_.rethrow();
}

EngineCounters Engine::counters() {
  thread_->wait();
  const auto& loss = optimizer_->loss_window().values();
  const auto& norm = optimizer_->norm_window().values();
  return {.step = step_,
          .applied_steps = optimizer_->applied_steps(),
          .loss_window = {loss.begin(), loss.end()},
          .grad_norm_window = {norm.begin(), norm.end()}};
}

void Engine::save_state(const HfFolder& source, const std::string& to, bool in_step) const {
  create_folders((std::filesystem::path(to) / "trainer").string());
  DeviceMemory& memory = *device_.memory;
  const Optimizer& optimizer = *optimizer_;
  std::vector<TensorToWrite> state;
  std::vector<TensorToWrite> step;
  for (size_t i = 0; i < store_->parameters().size(); ++i) {
    const Parameter& parameter = store_->parameters()[i];
    if (!parameter.trains) continue;
    const std::string name = parameter.spec->name();
    state.push_back(device_tensor("m." + name, optimizer.first_moment(i), memory));
    state.push_back(device_tensor("v." + name, optimizer.second_moment(i), memory));
    if (!is_exact_in(source, parameter))
      state.push_back(device_tensor("master." + name, parameter.master, memory));
    if (in_step && store_->gradient_written(i)) {
      step.push_back(device_tensor("gradient." + name, parameter.gradient, memory));
    }
  }
  const Activity activity =
      log_.activity("saving the optimizer's state", bytes_of(state) + bytes_of(step), "bytes");
  show_writing(state, activity);
  show_writing(step, activity);
  write_safetensors(trainer_file(to, kOptimizerName), state, {{"format", "lathe"}});
  if (!in_step) return;
  const std::array<double, 5> sums{loss_sum_, denominator_sum_, accumulated_.flops, accumulated_.fwd_bwd_s,
                                   static_cast<double>(accumulated_.head_restarts)};
  std::vector<int64_t> counts;
  for (const ExpertCounts& layer : expert_counts_) counts.insert(counts.end(), layer.begin(), layer.end());
  step.push_back(host_tensor(kSums, "F64", {static_cast<int64_t>(sums.size())}, sums.data(), sizeof sums));
  const auto stats = std::bit_cast<LossStatsNumbers>(accumulated_.stats);
  step.push_back(
      host_tensor(kStats, "F64", {static_cast<int64_t>(stats.size())}, stats.data(), sizeof stats));
  step.push_back(host_tensor(kExpertCounts, "I64",
                             {static_cast<int64_t>(expert_counts_.size()), config_.num_experts},
                             counts.data(), counts.size() * sizeof(int64_t)));
  write_safetensors(trainer_file(to, kGradientsName), step, {{"format", "lathe"}});
}

uint64_t Engine::state_bytes(const HfFolder& source, bool in_step) const {
  constexpr uint64_t kHeaders = 4096;
  uint64_t bytes = kHeaders;
  for (const Parameter& parameter : store_->parameters()) {
    if (!parameter.trains) continue;
    const auto one = static_cast<uint64_t>(parameter.gradient.view().bytes());
    bytes += one * (2U + (is_exact_in(source, parameter) ? 0U : 1U) + (in_step ? 1U : 0U));
    bytes += kHeaders / 8;
  }
  return bytes;
}

void Engine::restore(const HfFolder& source, const std::string& from, const EngineCounters& counters,
                     bool in_step) {
  step_ = counters.step;
  thread_->run([&] {
    const StateFile file(trainer_file(from, kOptimizerName));
    DeviceMemory& memory = *device_.memory;
    for (size_t i = 0; i < store_->parameters().size(); ++i) {
      Parameter& parameter = store_->parameters()[i];
      if (!parameter.trains) continue;
      const std::string name = parameter.spec->name();
      const auto read = [&](const std::string& tensor, View to) {
        file.read(tensor, to, memory);
        const double squares = device_.kernels.sum_of_squares(*device_.queue, to);
        if (!std::isfinite(squares)) {
          model_error(trainer_file(from, kOptimizerName),
                      fmt::format("tensor {} holds values that are not finite", tensor));
        }
        return squares;
      };
      const double moments =
          read("m." + name, optimizer_->first_moment(i)) + read("v." + name, optimizer_->second_moment(i));
      if (moments != 0 && counters.applied_steps == 0) {
        model_error(
            trainer_file(from, kOptimizerName),
            fmt::format("the moments of {} are not 0, expected 0: no step has been applied by the state "
                        "beside it (applied_steps 0)",
                        name),
            kCheckpointRemedy);
      }
      if (is_exact_in(source, parameter)) continue;
      static_cast<void>(read("master." + name, parameter.master));
      if (!parameter.weight.empty()) device_.kernels.cast(*device_.queue, parameter.master, parameter.weight);
    }
    optimizer_->restore(counters.applied_steps, counters.loss_window, counters.grad_norm_window);
    if (in_step) restore_gradients(trainer_file(from, kGradientsName));
  });
}

void Engine::restore_gradients(const std::string& path) {
  const StateFile file(path);
  for (size_t i = 0; i < store_->parameters().size(); ++i) {
    Parameter& parameter = store_->parameters()[i];
    const std::string name = "gradient." + parameter.spec->name();
    if (!parameter.trains || !file.has(name)) continue;
    file.read(name, parameter.gradient, *device_.memory);
    store_->set_gradient_written(i);
  }
  const auto sums = file.read_host<double>(kSums, "F64", {5});
  loss_sum_ = sums[0];
  denominator_sum_ = sums[1];
  accumulated_.flops = sums[2];
  accumulated_.fwd_bwd_s = sums[3];
  accumulated_.head_restarts = static_cast<int64_t>(sums[4]);
  LossStatsNumbers stats;
  const auto read = file.read_host<double>(kStats, "F64", {static_cast<int64_t>(stats.size())});
  std::copy(read.begin(), read.end(), stats.begin());
  accumulated_.stats = std::bit_cast<LossStats>(stats);
  const auto layers =
      static_cast<int64_t>(std::count_if(config_.layers.begin(), config_.layers.end(),
                                         [](const LayerKind& k) { return k.mlp == MlpKind::kMoe; }));
  const auto counts = file.read_host<int64_t>(kExpertCounts, "I64", {layers, config_.num_experts});
  expert_counts_.clear();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto begin = counts.begin() + layer * config_.num_experts;
    expert_counts_.emplace_back(begin, begin + config_.num_experts);
  }
}

}  // namespace lathe
