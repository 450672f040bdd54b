// Where weights and their gradients live. Model code reaches weights only through gather (a unit at a time: the
// embedding, one layer, or the head), uses them, and releases them by dropping the handle; gradients through `target`.
// How they are stored, sharded or moved is a matter of this class alone.
//
// On a mesh a rank stores a flat_shard of every matrix, with its gradient and its optimizer state: of dense ones over
// fsdp x context x expert; of its own experts (runs of ceil(E / size) over context x expert) over fsdp. Norm scales, A_log,
// dt_bias and the convolution are whole on every rank. gather brings the parts together in a buffer of their own; finish
// starts the reduction of a unit's gradients into the shards, once per micro-batch, beside the kernels that follow.
// What is left to add up over ranks at the end of a step (data replicas, whole parameters) is done by reduce_replicas.
#pragma once

#include <cstdint>
#include <functional>
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

// When the experts of a layer are gathered: when they are first used, or with the rest of the layer.
enum class ExpertPrefetch : uint8_t { kNone, kForward, kForwardBackward };

struct ParameterStoreOptions {
  DType weight_dtype = DType::kF32;    // of matrices; everything else is f32
  std::vector<std::string> trainable;  // regexes, searched in Hugging Face names; empty = all
  bool frozen = false;                 // nothing trains: no masters beside bf16 weights, no gradients
  ExpertPrefetch expert_prefetch = ExpertPrefetch::kNone;
  bool prefetch = true;  // of the layer that comes next
};

struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// One parameter and what belongs to it. Tensors hold this rank's elements: shaped as the parameter where all of it is here,
// else flat.
struct Parameter {
  const ParameterSpec* spec = nullptr;
  AxisSet axes = 0;     // the shards are gathered over; 0: nothing to gather
  Shape gathered;       // what gather gives: spec->shape, or this rank's experts
  int64_t region = 0;   // the element of the parameter where that begins
  FlatShard shard;      // the elements of the parameter that are stored here
  bool writes = true;   // this rank writes them to files (of replicas, one does)
  Tensor master;        // f32 value (f64 on an f64 device); absent for frozen parameters in bf16 storage
  Tensor weight;        // bf16 copy that products read; absent when the master is read
  Tensor gradient;      // sum over the step's micro-batches, undivided; absent when nothing of it trains
  bool trains = false;  // something of it, here or on another rank
  std::vector<ElementRange>
      trained;  // of the elements here those that train, ascending, merged, counted from shard.begin

  [[nodiscard]] bool sharded() const { return shard.size() != spec->shape.size(); }
  [[nodiscard]] ConstView value() const { return weight.empty() ? ConstView(master) : ConstView(weight); }
  // Elements [begin, end) of the parameter as far as they are here, counted from shard.begin.
  [[nodiscard]] ElementRange here(int64_t begin, int64_t end) const;
};

inline constexpr int kEmbeddingUnit = -1;
inline constexpr int kHeadUnit = -2;

class ParameterStore;

// The weights of one unit, valid while this lives (and the store).
class GatheredWeights {
 public:
  // Empty if the unit has no such parameter. Waits for what is still on its way.
  [[nodiscard]] ConstView operator[](ParameterRole role) const;

 private:
  friend class ParameterStore;
  struct Part {
    ParameterRole role = ParameterRole::kEmbedding;
    ConstView view;
    Tensor buffer;                   // of a gather
    std::function<Request()> start;  // of one that waits for the first use
    Request request;
  };
  std::shared_ptr<std::vector<Part>> parts_;
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
  // A parameter that is whole on every rank.
  [[nodiscard]] ConstView whole(ParameterRole role, int layer = -1) const;
  // gather(unit, phase) comes soon: its exchanges start now.
  void prefetch(int unit, Phase phase);

  // For kernels that add: zeroed when the step has not written it yet.
  [[nodiscard]] View target(ParameterRole role, int layer = -1);
  // For matrix products, which can overwrite.
  [[nodiscard]] GradientTarget product_target(ParameterRole role, int layer = -1);
  // All gradients of the unit are complete for this micro-batch: their reduction over ranks starts.
  void finish(int unit);
  // The same for the head's table alone, between two of its chunks.
  void finish_table(ParameterRole table);
  // The reductions begun so far are done.
  void wait_reductions();
  // At the end of a step: adds up what ranks hold of the same elements. All ranks together.
  void reduce_replicas();
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

  // Host copies of elements [first, first + to.size()) of the parameter, which are here, in f32. No kernel runs: any thread may ask while nobody writes.
  void read_value(size_t parameter, int64_t first, std::span<float> to) const;
  void read_gradient(size_t parameter, double scale, int64_t first, std::span<float> to) const;
  // from: the whole parameter; what is not this rank's is left out.
  void write_value(size_t parameter, std::span<const float> from);

 private:
  struct Pending {
    Tensor whole;  // a micro-batch's gradient before its reduction; empty: nobody asked for it yet
    bool written = false;
  };
  struct Reduction {
    Tensor whole;
    Request request;
  };
  [[nodiscard]] size_t index_of(ParameterRole role, int layer) const;  // npos if absent
  void place(Parameter& parameter) const;
  [[nodiscard]] GatheredWeights start_gather(int unit, Phase phase);
  [[nodiscard]] View pending_target(size_t parameter);
  void reduce(size_t parameter);
  [[nodiscard]] Exchange exchange(const Parameter& parameter, Phase phase) const;

  Device& device_;
  Communicator& communicator_;
  ParameterLayout layout_;
  ParameterStoreOptions options_;
  std::vector<Parameter> parameters_;
  std::map<std::pair<ParameterRole, int>, size_t> index_;
  std::map<int, std::vector<size_t>> units_;
  std::vector<bool> written_;  // per parameter: this step has written its gradient
  std::map<std::string, bool> trains_;
  std::map<int, std::pair<Phase, GatheredWeights>> prefetched_;
  std::vector<Pending> pending_;       // per parameter
  std::vector<Reduction> reductions_;  // on their way
  bool replicas_reduced_ = false;      // of this step
};

}  // namespace lathe
