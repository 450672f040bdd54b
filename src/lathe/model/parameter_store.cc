#include "lathe/model/parameter_store.h"

#include <algorithm>
#include <regex>

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

std::vector<RowRange> trained_rows_of(const ParameterSpec& spec, const std::map<std::string, bool>& trains) {
  std::vector<RowRange> ranges;
  for (const HfSlice& slice : spec.slices) {
    if (trains.at(slice.tensor)) ranges.push_back({slice.row, slice.row + slice.rows});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::vector<RowRange> merged;
  for (const RowRange& range : ranges) {
    if (!merged.empty() && merged.back().end == range.begin) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
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

ConstView GatheredWeights::operator[](ParameterRole role) const {
  for (const auto& [key, view] : views_) {
    if (key == role) return view;
  }
  return {};
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
    parameter.trained_rows = trained_rows_of(spec, trains_);
    const bool narrow = options_.weight_dtype == DType::kBF16 && spec.is_matrix();
    if (narrow) {
      parameter.weight = memory.allocate(DType::kBF16, spec.shape, MemoryKind::kWeights, spec.name());
    }
    if (!narrow || parameter.trains()) {
      parameter.master =
          memory.allocate(type, spec.shape, narrow ? MemoryKind::kOptimizer : MemoryKind::kWeights,
                          spec.name() + (narrow ? " master" : ""));
    }
    if (parameter.trains()) {
      parameter.gradient =
          memory.allocate(type, spec.shape, MemoryKind::kGradients, spec.name() + " gradient");
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
  Tensor staging =
      device_.memory->allocate(DType::kF32, p.spec->shape, MemoryKind::kScratch, p.spec->name() + " staging");
  device_.memory->copy_from_host(staging, from.data());
  if (!p.master.empty()) device_.kernels.cast(*device_.queue, staging, p.master);
  if (!p.weight.empty()) device_.kernels.cast(*device_.queue, staging, p.weight);
}

void ParameterStore::read_value(size_t parameter, int64_t first, std::span<float> to) const {
  const Parameter& p = parameters_[parameter];
  read_floats(*device_.memory, p.master.empty() ? p.weight : p.master, first, to);
}

void ParameterStore::read_gradient(size_t parameter, double scale, int64_t first, std::span<float> to) const {
  const Parameter& p = parameters_[parameter];
  LATHE_CHECK(p.trains(), "{} has no gradient", p.spec->name());
  read_floats(*device_.memory, p.gradient, first, to);
  for (float& x : to) x = static_cast<float>(x * scale);
}

GatheredWeights ParameterStore::gather(int unit, Phase phase) {
  GatheredWeights out;
  for (const size_t i : units_.at(unit)) {
    const Parameter& p = parameters_[i];
    // The whole of a parameter on one rank is the part itself; a sharded store gathers into a buffer of its own.
    const ConstView part = p.value();
    const View whole = p.weight.empty() ? p.master.view() : p.weight.view();
    communicator_.all_gather(
        {.axes = kAxesDense, .phase = phase, .tensor = p.spec->slices.front().tensor.c_str()}, part, whole);
    out.views_.emplace_back(p.spec->role, whole);
  }
  return out;
}

size_t ParameterStore::index_of(ParameterRole role, int layer) const {
  const auto found = index_.find({role, layer});
  return found == index_.end() ? kAbsent : found->second;
}

View ParameterStore::target(ParameterRole role, int layer) {
  const size_t i = index_of(role, layer);
  if (i == kAbsent || !parameters_[i].trains()) return {};
  if (!written_[i]) device_.kernels.fill(*device_.queue, 0, parameters_[i].gradient);
  written_[i] = true;
  return parameters_[i].gradient;
}

GradientTarget ParameterStore::product_target(ParameterRole role, int layer) {
  const size_t i = index_of(role, layer);
  if (i == kAbsent || !parameters_[i].trains()) return {};
  const GradientTarget out{parameters_[i].gradient, written_[i]};
  written_[i] = true;
  return out;
}

void ParameterStore::finish(int unit) {
  for (const size_t i : units_.at(unit)) {
    Parameter& p = parameters_[i];
    if (!p.trains()) continue;
    // A tied table is complete only when the embedding's part is in.
    if (unit == kHeadUnit && p.spec->role == ParameterRole::kEmbedding) continue;
    communicator_.reduce_scatter(
        {.axes = kAxesDense, .phase = Phase::kBackward, .tensor = p.spec->slices.front().tensor.c_str()},
        p.gradient, p.gradient);
  }
}

void ParameterStore::clear_gradients() {
  written_.assign(parameters_.size(), false);
}

void ParameterStore::complete_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    if (!p.trains()) continue;
    if (!written_[i]) {
      device_.kernels.fill(*device_.queue, 0, p.gradient);
      written_[i] = true;
    }
    const View rows = p.gradient.view().reshape(Shape{p.spec->rows(), p.spec->row_elements});
    int64_t done = 0;
    for (const RowRange& range : p.trained_rows) {
      if (range.begin > done) device_.kernels.fill(*device_.queue, 0, rows.rows(done, range.begin - done));
      done = range.end;
    }
    if (done < rows.dim(0)) device_.kernels.fill(*device_.queue, 0, rows.rows(done, rows.dim(0) - done));
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
