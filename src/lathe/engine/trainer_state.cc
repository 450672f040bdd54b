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

// Of a parameter's elements [0, size of its spec), those that this rank has: at shard.begin.
TensorToWrite shard_tensor(const std::string& name, const Parameter& parameter, ConstView view, bool writes,
                           DeviceMemory& memory) {
  if (!parameter.sharded() && writes) {
    TensorToWrite out = device_tensor(name, view.reshape(parameter.spec->shape), memory);
    out.owned = {{{0, static_cast<uint64_t>(view.bytes())}}};
    return out;
  }
  const auto size = static_cast<uint64_t>(dtype_size(view.dtype));
  const uint64_t first = static_cast<uint64_t>(parameter.shard.begin) * size;
  TensorToWrite out = device_tensor(name, view, memory);
  out.shape = extents_of(parameter.spec->shape);
  out.produce_part = [produce = std::move(out.produce_part), first](uint64_t begin, std::byte* to,
                                                                    uint64_t bytes) {
    produce(begin - first, to, bytes);
  };
  out.owned.emplace();
  if (writes && parameter.shard.size() > 0) {
    out.owned->push_back({first, first + static_cast<uint64_t>(view.bytes())});
  }
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
  // The elements of a parameter that are here.
  void read(const std::string& name, const Parameter& parameter, View to, DeviceMemory& memory) const {
    const std::byte* whole = find(name, file_type(to.dtype), extents_of(parameter.spec->shape));
    const std::byte* from = whole + parameter.shard.begin * dtype_size(to.dtype);
    memory.copy_from_host(to, from);
    file_.release(from, static_cast<uint64_t>(to.bytes()));  // not in memory twice
  }
  // Rows of a table of `width` columns.
  [[nodiscard]] int64_t rows_of(const std::string& name, const char* dtype, int64_t width) const {
    const auto found = file_.tensors().find(name);
    const bool table = found != file_.tensors().end() && found->second.shape.size() == 2;
    const int64_t rows = table ? found->second.shape[0] : 1;
    static_cast<void>(find(name, dtype, {rows, width}));
    return rows;
  }
  [[nodiscard]] std::string metadata(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? "" : found->second;
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

// Of a step in progress, beside the gradients: a row of numbers per rank (step_numbers).
constexpr const char* kNumbers = "step.numbers";
constexpr size_t kStepSums =
    5;  // loss, denominator, FLOPs, seconds, restarts; then LossStatsNumbers, then counts

std::string mesh_text(const MeshShape& mesh) {
  return fmt::format("{},{},{},{}", mesh.data, mesh.fsdp, mesh.context, mesh.expert);
}

// The ranks that hold the same elements of a parameter, and add up their gradients at the end of a step.
AxisSet replica_axes(const Parameter& parameter) {
  return parameter.spec->is_matrix() ? kAxisData : kAxisAll;
}

std::string gradient_name(const Parameter& parameter, int replica) {
  return "gradient." + parameter.spec->name() + (replica == 0 ? "" : fmt::format("@{}", replica));
}

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
    const auto add = [&](const char* kind, ConstView view) {
      state.push_back(shard_tensor(kind + name, parameter, view, parameter.writes, memory));
    };
    add("m.", optimizer.first_moment(i));
    add("v.", optimizer.second_moment(i));
    if (!is_exact_in(source, parameter)) add("master.", parameter.master);
    if (!in_step || !store_->gradient_written(i)) continue;
    // Ranks that hold the same elements have not added up yet what each of them found.
    const AxisSet axes = replica_axes(parameter);
    for (int replica = 0; replica < communicator_.size(axes); ++replica) {
      step.push_back(shard_tensor(gradient_name(parameter, replica), parameter, parameter.gradient,
                                  replica == communicator_.index(axes), memory));
    }
  }
  const Activity activity =
      log_.activity("saving the optimizer's state", bytes_of(state) + bytes_of(step), "bytes");
  show_writing(state, activity);
  show_writing(step, activity);
  const WriteShare share = file_share(Channel::kSaver).files;
  write_safetensors(trainer_file(to, kOptimizerName), state, {{"format", "lathe"}}, share);
  if (!in_step) return;
  const StepNumbers numbers = step_numbers();
  const auto ranks = static_cast<int64_t>(communicator_.mesh().size());
  const auto width = static_cast<int64_t>(numbers.front().size());
  std::vector<double> rows;
  for (const auto& row : numbers) rows.insert(rows.end(), row.begin(), row.end());
  step.push_back(host_tensor(kNumbers, "F64", {ranks, width}, rows.data(), rows.size() * sizeof(double)));
  write_safetensors(trainer_file(to, kGradientsName), step,
                    {{"format", "lathe"}, {"mesh", mesh_text(communicator_.mesh())}}, share);
}

// What each rank has counted of the step: sums, statistics of the loss, tokens per expert.
Engine::StepNumbers Engine::step_numbers() const {
  const std::array<double, kStepSums> sums{loss_sum_, denominator_sum_, accumulated_.flops,
                                           accumulated_.fwd_bwd_s,
                                           static_cast<double>(accumulated_.head_restarts)};
  std::vector<double> own(sums.begin(), sums.end());
  const auto stats = std::bit_cast<LossStatsNumbers>(accumulated_.stats);
  own.insert(own.end(), stats.begin(), stats.end());
  for (const ExpertCounts& layer : expert_counts_) own.insert(own.end(), layer.begin(), layer.end());
  return of_all_ranks(own, "step", Channel::kSaver);
}

void Engine::take_step_numbers(const std::vector<double>& numbers) {
  const double* from = numbers.data();
  loss_sum_ += *from++;
  denominator_sum_ += *from++;
  accumulated_.flops += *from++;
  accumulated_.fwd_bwd_s += *from++;
  accumulated_.head_restarts += static_cast<int64_t>(*from++);
  LossStatsNumbers stats;
  std::copy_n(from, stats.size(), stats.begin());
  from += stats.size();
  accumulated_.stats.add(std::bit_cast<LossStats>(stats));
  for (ExpertCounts& layer : expert_counts_) {
    for (int64_t& count : layer) count += static_cast<int64_t>(*from++);
  }
}

uint64_t Engine::state_bytes(const HfFolder& source, bool in_step) const {
  constexpr uint64_t kHeaders = 4096;
  uint64_t bytes = kHeaders;
  for (const Parameter& parameter : store_->parameters()) {
    if (!parameter.trains) continue;
    const auto one = static_cast<uint64_t>(parameter.spec->shape.size() * dtype_size(device_.float_type()));
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
        file.read(tensor, parameter, to, memory);
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
  // On the mesh that wrote them every rank takes up its own; on another one the first of those that share takes all.
  const bool same_mesh = file.metadata("mesh") == mesh_text(communicator_.mesh());
  DeviceMemory& memory = *device_.memory;
  for (size_t i = 0; i < store_->parameters().size(); ++i) {
    Parameter& parameter = store_->parameters()[i];
    if (!parameter.trains || !file.has(gradient_name(parameter, 0))) continue;
    const int index = communicator_.index(replica_axes(parameter));
    store_->set_gradient_written(i);
    if (same_mesh) {
      file.read(gradient_name(parameter, index), parameter, parameter.gradient, memory);
      continue;
    }
    device_.kernels.fill(*device_.queue, 0, parameter.gradient);
    for (int replica = 0; index == 0 && file.has(gradient_name(parameter, replica)); ++replica) {
      const Tensor one = memory.allocate(device_.float_type(), parameter.gradient.view().shape,
                                         MemoryKind::kScratch, "gradient of a replica");
      file.read(gradient_name(parameter, replica), parameter, one, memory);
      device_.kernels.add(*device_.queue, one, parameter.gradient, parameter.gradient);
    }
  }
  const auto layers =
      static_cast<size_t>(std::count_if(config_.layers.begin(), config_.layers.end(),
                                        [](const LayerKind& k) { return k.mlp == MlpKind::kMoe; }));
  expert_counts_.assign(layers, ExpertCounts(static_cast<size_t>(config_.num_experts) + 1, 0));
  const auto width = static_cast<int64_t>(kStepSums + std::tuple_size_v<LossStatsNumbers>) +
                     static_cast<int64_t>(layers) * (config_.num_experts + 1);
  const int64_t ranks = file.rows_of(kNumbers, "F64", width);
  const auto rows = file.read_host<double>(kNumbers, "F64", {ranks, width});
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const bool own = same_mesh ? rank == communicator_.rank() : communicator_.rank() == 0;
    if (!own) continue;
    const auto begin = rows.begin() + rank * width;
    take_step_numbers({begin, begin + width});
  }
}

}  // namespace lathe
