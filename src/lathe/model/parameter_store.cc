#include "lathe/model/parameter_store.h"

#include <algorithm>
#include <regex>
#include <utility>

#include "lathe/model/checkpoint.h"

namespace lathe {
namespace {

constexpr size_t kAbsent = static_cast<size_t>(-1);

int unit_of(const ParameterSpec& spec) {
  if (spec.layer >= 0) return spec.layer;
  return spec.role == ParameterRole::kEmbedding ? kEmbeddingUnit : kHeadUnit;
}

std::map<std::string, bool> match_trainable(const ParameterLayout& layout,
                                            const ParameterStoreOptions& options) {
  std::vector<std::regex> patterns;
  for (const std::string& pattern : options.trainable) {
    try {
      patterns.emplace_back(pattern);
    } catch (const std::regex_error& e) {
      config_error("model.trainable", fmt::format("'{}' is not a regular expression: {}", pattern, e.what()),
                   "patterns are ECMAScript expressions searched in Hugging Face tensor names");
    }
  }
  std::map<std::string, bool> trains;
  std::vector<bool> used(patterns.size(), false);
  for (const auto& [name, shape] : layout.hf_tensors) {
    bool matches = patterns.empty();
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (!std::regex_search(name, patterns[i])) continue;
      matches = true;
      used[i] = true;
    }
    trains[name] = matches && !options.frozen;
  }
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (used[i]) continue;
    config_error("model.trainable",
                 fmt::format("'{}' matches none of the model's {} tensors", options.trainable[i],
                             layout.hf_tensors.size()),
                 "see the names with `lathe inspect`");
  }
  return trains;
}

// Of the elements that are here, those that train.
std::vector<ElementRange> trained_of(const Parameter& parameter, const std::map<std::string, bool>& trains) {
  std::vector<ElementRange> ranges;
  const int64_t width = parameter.spec->row_elements;
  for (const HfSlice& slice : parameter.spec->slices) {
    if (!trains.at(slice.tensor)) continue;
    const ElementRange here = parameter.here(slice.row * width, (slice.row + slice.rows) * width);
    if (here.begin < here.end) ranges.push_back(here);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const ElementRange& a, const ElementRange& b) { return a.begin < b.begin; });
  std::vector<ElementRange> merged;
  for (const ElementRange& range : ranges) {
    if (!merged.empty() && merged.back().end == range.begin) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

bool is_expert(const ParameterSpec& spec) {
  return spec.role == ParameterRole::kExpertsGateUp || spec.role == ParameterRole::kExpertsDown;
}

// Elements [first, first + to.size()) of a view, whatever its type, as f32.
void read_floats(DeviceMemory& memory, ConstView view, int64_t first, std::span<float> to) {
  const auto count = static_cast<int64_t>(to.size());
  const ConstView part = view.reshape(Shape{view.size()}).rows(first, count);
  if (part.dtype == DType::kF32) {
    memory.copy_to_host(to.data(), part);
  } else if (part.dtype == DType::kF64) {
    std::vector<double> wide(to.size());
    memory.copy_to_host(wide.data(), part);
    std::transform(wide.begin(), wide.end(), to.begin(), [](double x) { return static_cast<float>(x); });
  } else {
    LATHE_CHECK(part.dtype == DType::kBF16, "dtype {}", dtype_name(part.dtype));
    std::vector<BFloat16> narrow(to.size());
    memory.copy_to_host(narrow.data(), part);
    std::transform(narrow.begin(), narrow.end(), to.begin(), [](BFloat16 x) { return to_float(x); });
  }
}

}  // namespace

ElementRange Parameter::here(int64_t begin, int64_t end) const {
  const int64_t from = std::clamp(begin, shard.begin, shard.end);
  return {from - shard.begin, std::clamp(end, from, shard.end) - shard.begin};
}

ConstView GatheredWeights::operator[](ParameterRole role) const {
  if (parts_ == nullptr) return {};
  for (Part& part : *parts_) {
    if (part.role != role) continue;
    if (part.start) part.request = std::exchange(part.start, nullptr)();
    part.request.wait();
    return part.view;
  }
  return {};
}

// Which elements this rank stores.
void ParameterStore::place(Parameter& parameter) const {
  const ParameterSpec& spec = *parameter.spec;
  const MeshShape& mesh = communicator_.mesh();
  const int rank = communicator_.rank();
  parameter.gathered = spec.shape;
  parameter.shard = {0, spec.shape.size()};
  if (is_expert(spec)) {
    const int64_t expert = spec.shape.size() / spec.shape[0];
    const FlatShard experts =
        flat_shard(spec.shape[0], mesh.size(kAxesExperts), mesh.index(rank, kAxesExperts));
    parameter.gathered = Shape{experts.size(), spec.shape[1], spec.shape[2]};
    parameter.region = experts.begin * expert;
    parameter.axes = kAxisFsdp;
  } else if (spec.is_matrix()) {
    parameter.axes = kAxesDense;
  }
  if (mesh.size(parameter.axes) == 1) parameter.axes = 0;
  const FlatShard part =
      flat_shard(parameter.gathered.size(), mesh.size(parameter.axes), mesh.index(rank, parameter.axes));
  parameter.shard = {parameter.region + part.begin, parameter.region + part.end};
  const AxisSet cut = is_expert(spec) ? kAxesDense : parameter.axes;
  parameter.writes = mesh.index(rank, kAxisAll & static_cast<AxisSet>(~cut)) == 0;
}

ParameterStore::ParameterStore(Device& device, Communicator& communicator, const ParameterLayout& layout,
                               const ParameterStoreOptions& options)
    : device_(device), communicator_(communicator), layout_(layout), options_(options) {
  trains_ = match_trainable(layout_, options_);
  DeviceMemory& memory = *device_.memory;
  const DType type = device_.float_type();
  for (const ParameterSpec& spec : layout_.parameters) {
    Parameter parameter;
    parameter.spec = &spec;
    place(parameter);
    parameter.trained = trained_of(parameter, trains_);
    parameter.trains = std::any_of(spec.slices.begin(), spec.slices.end(),
                                   [&](const HfSlice& slice) { return trains_.at(slice.tensor); });
    const bool narrow = options_.weight_dtype == DType::kBF16 && spec.is_matrix();
    const Shape shape = parameter.sharded() ? Shape{parameter.shard.size()} : spec.shape;
    if (narrow) {
      parameter.weight = memory.allocate(DType::kBF16, shape, MemoryKind::kWeights, spec.name());
    }
    if (!narrow || parameter.trains) {
      parameter.master = memory.allocate(type, shape, narrow ? MemoryKind::kOptimizer : MemoryKind::kWeights,
                                         spec.name() + (narrow ? " master" : ""));
    }
    if (parameter.trains) {
      parameter.gradient = memory.allocate(type, shape, MemoryKind::kGradients, spec.name() + " gradient");
    }
    const size_t index = parameters_.size();
    index_[{spec.role, spec.layer}] = index;
    units_[unit_of(spec)].push_back(index);
    // A tied table is the head's too.
    if (spec.role == ParameterRole::kEmbedding) {
      const bool tied = find_parameter(layout_, ParameterRole::kLmHead) == nullptr;
      if (tied) units_[kHeadUnit].push_back(index);
    }
    parameters_.push_back(std::move(parameter));
  }
  written_.assign(parameters_.size(), false);
  pending_.resize(parameters_.size());
}

void ParameterStore::load(const HfFolder& folder, const std::function<void(int64_t)>& on_numbers) {
  std::vector<float> host;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    host.resize(static_cast<size_t>(parameters_[i].spec->shape.size()));
    read_parameter(folder, *parameters_[i].spec, host);
    write_value(i, host);
    if (on_numbers) on_numbers(parameters_[i].spec->shape.size());
  }
}

void ParameterStore::write_value(size_t parameter, std::span<const float> from) {
  Parameter& p = parameters_[parameter];
  // Through a staging tensor of the device: conversions are the device's business.
  const Shape shape = p.sharded() ? Shape{p.shard.size()} : p.spec->shape;
  Tensor staging =
      device_.memory->allocate(DType::kF32, shape, MemoryKind::kScratch, p.spec->name() + " staging");
  device_.memory->copy_from_host(staging, from.data() + p.shard.begin);
  if (!p.master.empty()) device_.kernels.cast(*device_.queue, staging, p.master);
  if (!p.weight.empty()) device_.kernels.cast(*device_.queue, staging, p.weight);
}

void ParameterStore::read_value(size_t parameter, int64_t first, std::span<float> to) const {
  const Parameter& p = parameters_[parameter];
  read_floats(*device_.memory, p.master.empty() ? p.weight : p.master, first - p.shard.begin, to);
}

void ParameterStore::read_gradient(size_t parameter, double scale, int64_t first, std::span<float> to) const {
  const Parameter& p = parameters_[parameter];
  LATHE_CHECK(p.trains, "{} has no gradient", p.spec->name());
  read_floats(*device_.memory, p.gradient, first - p.shard.begin, to);
  for (float& x : to) x = static_cast<float>(x * scale);
}

Exchange ParameterStore::exchange(const Parameter& parameter, Phase phase) const {
  return {.axes = parameter.axes,
          .phase = phase,
          .tensor = parameter.spec->slices.front().tensor.c_str(),
          .channel = Channel::kDevice};
}

GatheredWeights ParameterStore::start_gather(int unit, Phase phase) {
  GatheredWeights out;
  out.parts_ = std::make_shared<std::vector<GatheredWeights::Part>>();
  for (const size_t i : units_.at(unit)) {
    const Parameter& p = parameters_[i];
    GatheredWeights::Part& part = out.parts_->emplace_back();
    part.role = p.spec->role;
    part.view = p.value();
    if (p.axes == 0) {
      part.view = part.view.reshape(p.gathered);
      continue;
    }
    part.buffer = device_.memory->allocate(part.view.dtype, p.gathered, MemoryKind::kWeights,
                                           p.spec->name() + " gathered");
    part.start = [this, i, phase, whole = part.buffer.view()] {
      const GatherPiece piece{parameters_[i].value(), whole, 1};
      return communicator_.start_all_gather(exchange(parameters_[i], phase), {&piece, 1});
    };
    part.view = part.buffer;
    const bool early = options_.expert_prefetch == ExpertPrefetch::kForwardBackward ||
                       (options_.expert_prefetch == ExpertPrefetch::kForward && phase != Phase::kBackward);
    if (!is_expert(*p.spec) || early) part.request = std::exchange(part.start, nullptr)();
  }
  return out;
}

ConstView ParameterStore::whole(ParameterRole role, int layer) const {
  const Parameter& p = parameters_[index_of(role, layer)];
  LATHE_CHECK(!p.sharded(), "{} is cut over ranks", p.spec->name());
  return p.value();
}

void ParameterStore::prefetch(int unit, Phase phase) {
  if (communicator_.size(kAxesDense) == 1 || !options_.prefetch) return;
  if (prefetched_.count(unit) == 0) prefetched_[unit] = {phase, start_gather(unit, phase)};
}

GatheredWeights ParameterStore::gather(int unit, Phase phase) {
  const auto found = prefetched_.find(unit);
  if (found == prefetched_.end()) return start_gather(unit, phase);
  LATHE_CHECK(found->second.first == phase, "unit {} was prefetched for {}", unit, phase_name(phase));
  GatheredWeights out = std::move(found->second.second);
  prefetched_.erase(found);
  return out;
}

size_t ParameterStore::index_of(ParameterRole role, int layer) const {
  const auto found = index_.find({role, layer});
  return found == index_.end() ? kAbsent : found->second;
}

// Where this micro-batch's gradient of a sharded parameter is put together.
View ParameterStore::pending_target(size_t parameter) {
  const Parameter& p = parameters_[parameter];
  Pending& pending = pending_[parameter];
  if (pending.whole.empty()) {
    pending.whole = device_.memory->allocate(device_.float_type(), p.gathered, MemoryKind::kGradients,
                                             p.spec->name() + " gradient, whole");
    pending.written = false;
  }
  return pending.whole;
}

View ParameterStore::target(ParameterRole role, int layer) {
  const size_t i = index_of(role, layer);
  if (i == kAbsent || !parameters_[i].trains) return {};
  const GradientTarget out = product_target(role, layer);
  if (!out.accumulate) device_.kernels.fill(*device_.queue, 0, out.view);
  return out.view;
}

GradientTarget ParameterStore::product_target(ParameterRole role, int layer) {
  const size_t i = index_of(role, layer);
  if (i == kAbsent || !parameters_[i].trains) return {};
  if (parameters_[i].axes != 0) {
    const View whole = pending_target(i);
    return {whole, std::exchange(pending_[i].written, true)};
  }
  const View here = parameters_[i].gradient.view().reshape(parameters_[i].gathered);
  const GradientTarget out{here, written_[i]};
  written_[i] = true;
  return out;
}

void ParameterStore::reduce(size_t parameter) {
  Parameter& p = parameters_[parameter];
  if (pending_[parameter].whole.empty()) return;
  Reduction& reduction = reductions_.emplace_back();
  reduction.whole = std::move(pending_[parameter].whole);
  const ReducePiece piece{reduction.whole, p.gradient, 1, written_[parameter]};
  reduction.request = communicator_.start_reduce_scatter(exchange(p, Phase::kBackward), {&piece, 1});
  written_[parameter] = true;
}

void ParameterStore::finish(int unit) {
  wait_reductions();  // of the unit before: its buffers go
  for (const size_t i : units_.at(unit)) {
    // A tied table is complete only when the embedding's part is in.
    if (unit == kHeadUnit && parameters_[i].spec->role == ParameterRole::kEmbedding) continue;
    reduce(i);
  }
}

void ParameterStore::finish_table(ParameterRole table) {
  wait_reductions();
  reduce(index_of(table, -1));
}

void ParameterStore::wait_reductions() {
  for (Reduction& reduction : reductions_) reduction.request.wait();
  reductions_.clear();
}

void ParameterStore::reduce_replicas() {
  wait_reductions();
  if (std::exchange(replicas_reduced_, true) || communicator_.size(kAxisAll) == 1) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    if (!p.trains) continue;
    // The ranks that hold the same elements: of whole parameters all, else those of the data axis.
    const AxisSet axes = p.spec->is_matrix() ? kAxisData : kAxisAll;
    if (communicator_.size(axes) == 1) continue;
    if (!written_[i]) device_.kernels.fill(*device_.queue, 0, p.gradient);
    written_[i] = true;
    Exchange what = exchange(p, Phase::kUpdate);
    what.axes = axes;
    communicator_.all_reduce(what, p.gradient);
  }
}

void ParameterStore::clear_gradients() {
  written_.assign(parameters_.size(), false);
  replicas_reduced_ = false;
}

void ParameterStore::complete_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    if (!p.trains) continue;
    if (!written_[i]) {
      device_.kernels.fill(*device_.queue, 0, p.gradient);
      written_[i] = true;
    }
    const View flat = p.gradient.view().reshape(Shape{p.shard.size()});
    int64_t done = 0;
    for (const ElementRange& range : p.trained) {
      if (range.begin > done) device_.kernels.fill(*device_.queue, 0, flat.rows(done, range.begin - done));
      done = range.end;
    }
    if (done < flat.size()) device_.kernels.fill(*device_.queue, 0, flat.rows(done, flat.size() - done));
  }
}

bool ParameterStore::tensor_trains(const std::string& hf_tensor) const {
  const auto found = trains_.find(hf_tensor);
  return found != trains_.end() && found->second;
}

std::vector<std::string> ParameterStore::trained_tensors() const {
  std::vector<std::string> out;
  for (const auto& [name, trains] : trains_) {
    if (trains) out.push_back(name);
  }
  return out;
}

}  // namespace lathe
