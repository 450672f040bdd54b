// Where weights and their gradients live. Model code reaches weights only through gather (a unit at a time: the
// embedding, one layer, or the head), uses them, and releases them by dropping the handle; gradients through `target`.
// How they are stored, sharded or moved is a matter of this class alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lathe/io/hf_folder.h"
#include "lathe/kernels/device.h"
#include "lathe/mesh/communicator.h"
#include "lathe/model/parameters.h"

namespace lathe {

struct ParameterStoreOptions {
  DType weight_dtype = DType::kF32;    // of matrices; everything else is f32
  std::vector<std::string> trainable;  // regexes, searched in Hugging Face names; empty = all
  bool frozen = false;                 // nothing trains: no masters beside bf16 weights, no gradients
};

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// One parameter and what belongs to it.
struct Parameter {
  const ParameterSpec* spec = nullptr;
  Tensor master;    // f32 value (f64 on an f64 device); absent for frozen parameters in bf16 storage
  Tensor weight;    // bf16 copy that products read; absent when the master is read
  Tensor gradient;  // sum over the step's micro-batches, undivided; absent when nothing of it trains
  std::vector<RowRange> trained_rows;  // rows that train, ascending, merged; all rows in the usual case

  [[nodiscard]] bool trains() const { return !trained_rows.empty(); }
  [[nodiscard]] ConstView value() const { return weight.empty() ? ConstView(master) : ConstView(weight); }
};

inline constexpr int kEmbeddingUnit = -1;
inline constexpr int kHeadUnit = -2;

class ParameterStore;

// The weights of one unit, valid while this lives.
class GatheredWeights {
 public:
  [[nodiscard]] ConstView operator[](ParameterRole role) const;  // empty if the unit has no such parameter

 private:
  friend class ParameterStore;
  std::vector<std::pair<ParameterRole, ConstView>> views_;
};

// Where a kernel puts a parameter gradient: added when accumulate, else written over what is there.
struct GradientTarget {
  View view;  // empty: the parameter does not train, skip the product
  bool accumulate = true;
  [[nodiscard]] bool wanted() const { return !view.empty(); }
};

class ParameterStore {
 public:
  ParameterStore(Device& device, Communicator& communicator, const ParameterLayout& layout,
                 const ParameterStoreOptions& options);

  // Model errors name the tensor. on_numbers: called with how many more numbers are there, for a display; may be empty.
  void load(const HfFolder& folder, const std::function<void(int64_t)>& on_numbers = {});

  [[nodiscard]] GatheredWeights gather(int unit, Phase phase);

  // For kernels that add: zeroed when the step has not written it yet.
  [[nodiscard]] View target(ParameterRole role, int layer = -1);
  // For matrix products, which can overwrite.
  [[nodiscard]] GradientTarget product_target(ParameterRole role, int layer = -1);
  // All gradients of the unit are complete for this micro-batch: the moment to reduce them over ranks.
  void finish(int unit);
  // The gradients belong to no step any more; the next target starts from zero.
  void clear_gradients();
  // Gradients nobody wrote this step become zeros, and rows that do not train too: what the optimizer and exports read.
  void complete_gradients();
  // Whether this step has written the gradient; it is undefined otherwise.
  [[nodiscard]] bool gradient_written(size_t parameter) const { return written_[parameter]; }
  // For a checkpoint that is read back: the gradient is filled by the caller.
  void set_gradient_written(size_t parameter) { written_[parameter] = true; }

  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] bool tensor_trains(const std::string& hf_tensor) const;
  [[nodiscard]] std::vector<std::string> trained_tensors() const;

  // Host copies of elements [first, first + to.size()) in f32. No kernel runs: any thread may ask while nobody writes.
  void read_value(size_t parameter, int64_t first, std::span<float> to) const;
  void read_gradient(size_t parameter, double scale, int64_t first, std::span<float> to) const;
  void write_value(size_t parameter, std::span<const float> from);

 private:
  [[nodiscard]] size_t index_of(ParameterRole role, int layer) const;  // npos if absent

  Device& device_;
  Communicator& communicator_;
  ParameterLayout layout_;
  ParameterStoreOptions options_;
  std::vector<Parameter> parameters_;
  std::map<std::pair<ParameterRole, int>, size_t> index_;
  std::map<int, std::vector<size_t>> units_;
  std::vector<bool> written_;  // per parameter: this step has written its gradient
  std::map<std::string, bool> trains_;
};

}  // namespace lathe
