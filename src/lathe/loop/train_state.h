// trainer/state.json of a checkpoint: everything about a run that is not a tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lathe/engine/engine.h"
#include "lathe/loop/setup.h"
#include "lathe/loop/step_feed.h"

namespace lathe {

// Rolling statistics that last over steps, by name; what is in them is the business of who puts them there.
using RollingStats = std::map<std::string, std::vector<double>>;

// What the run began with: hashes of config.json, of the tensors' names, types and shapes, and of samples of the weights.
struct BaseModel {
  std::string config;
  std::string tensors;
  std::string weights;
};
[[nodiscard]] BaseModel base_model(const LoadedModel& model);

struct TrainState {
  std::string version;  // of the program
  EngineCounters counters;
  int64_t micro_batches = 0;       // of step counters.step + 1
  int64_t step_micro_batches = 0;  // how many that step has; 0 between two steps
  StepPosition position;           // of step counters.step + 1
  std::vector<std::string> files;  // rollout files used so far, in order
  uint64_t file_bytes = 0;         // size of the one in use if it is not used up; else 0
  uint64_t seed = 0;
  RollingStats rolling;
  BaseModel base;
  std::map<std::string, std::string> settings;  // the configuration: key -> value
  std::string branched_from;                    // the checkpoint that run.resume named, or ""
};

// A name or setting as state.json holds it: what is not UTF-8 is replaced.
[[nodiscard]] std::string as_stored(const std::string& text);

// <checkpoint>/trainer/state.json. Model errors name file, key, value and what was expected; values that contradict each other
// or the checkpoint's name are refused.
void write_train_state(const std::string& checkpoint, const TrainState& state);
[[nodiscard]] TrainState read_train_state(const std::string& checkpoint);

// trainer/old_logprobs.safetensors: log-probs of the policy at the start of a batch of several steps. Nothing is written
// when there are none. They are read into micro-batches of the same sizes.
void write_old_logprobs(const std::string& checkpoint, const std::vector<std::vector<double>>& old_logprobs);
[[nodiscard]] std::vector<std::vector<double>> read_old_logprobs(const std::string& checkpoint);

}  // namespace lathe
