#include "lathe/loop/train_state.h"

#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/engine/checkpoint_files.h"
#include "lathe/io/files.h"
#include "lathe/io/safetensors.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 2;  // 1: of versions that could not go on from a checkpoint
constexpr const char* kStateName = "state.json";
constexpr const char* kOldLogprobsName = "old_logprobs.safetensors";

Json to_json(const TrainState& state) {
  const BatchPosition& batch = state.position.batch;
  return {{"format", kFormat},
          {"lathe", state.version},
          {"step", state.counters.step},
          {"micro_batches", state.micro_batches},
          {"step_micro_batches", state.step_micro_batches},
          {"applied_steps", state.counters.applied_steps},
          {"loss_window", state.counters.loss_window},
          {"grad_norm_window", state.counters.grad_norm_window},
          {"data",
           {{"epoch", batch.epoch},
            {"file", batch.file},
            {"batch", batch.batch},
            {"iteration", state.position.iteration},
            {"files", state.files},
            {"file_bytes", state.file_bytes}}},
          {"seed", state.seed},
          {"rolling", state.rolling},
          {"base",
           {{"config", state.base.config}, {"tensors", state.base.tensors}, {"weights", state.base.weights}}},
          {"branched_from", state.branched_from},
          {"settings", state.settings}};
}

// Whole and not negative; the library would cut 1.5 and wrap -1.
uint64_t unsigned_at(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (!value.is_number_unsigned()) {
    throw std::invalid_argument(
        fmt::format("{} is {}, expected a whole number of at least 0", key, value.dump()));
  }
  return value.get<uint64_t>();
}

int64_t count_at(const Json& json, const char* key) {
  const uint64_t value = unsigned_at(json, key);
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw std::invalid_argument(fmt::format("{} is {}, which is no count", key, value));
  }
  return static_cast<int64_t>(value);
}

TrainState from_json(const Json& json) {
  TrainState state;
  state.version = json.at("lathe");
  state.counters.step = count_at(json, "step");
  state.counters.applied_steps = count_at(json, "applied_steps");
  state.counters.loss_window = json.at("loss_window").get<std::vector<double>>();
  state.counters.grad_norm_window = json.at("grad_norm_window").get<std::vector<double>>();
  state.micro_batches = count_at(json, "micro_batches");
  state.step_micro_batches = count_at(json, "step_micro_batches");
  const Json& data = json.at("data");
  state.position.batch = {
      .epoch = count_at(data, "epoch"), .file = count_at(data, "file"), .batch = count_at(data, "batch")};
  state.position.iteration = count_at(data, "iteration");
  state.files = data.at("files").get<std::vector<std::string>>();
  state.file_bytes = unsigned_at(data, "file_bytes");
  state.seed = unsigned_at(json, "seed");
  state.rolling = json.at("rolling").get<RollingStats>();
  const Json& base = json.at("base");
  state.base = {.config = base.at("config"), .tensors = base.at("tensors"), .weights = base.at("weights")};
  state.branched_from = json.at("branched_from");
  state.settings = json.at("settings").get<std::map<std::string, std::string>>();
  return state;
}

}  // namespace

std::string as_stored(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

void write_train_state(const std::string& checkpoint, const TrainState& state) {
  write_file_atomically(trainer_file(checkpoint, kStateName),
                        to_json(state).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

TrainState read_train_state(const std::string& checkpoint) {
  const std::string path = trainer_file(checkpoint, kStateName);
  if (!file_exists(path))
    model_error(path, "no such file: this is not a checkpoint of a run", kCheckpointRemedy);
  const std::string text = read_file(path);
  try {
    check_json(path, text);
  } catch (const Error& e) {
    throw Error(e.kind(), "", e.what(), kCheckpointRemedy);
  }
  const Json json = Json::parse(text);
  try {
    const int64_t format = count_at(json, "format");
    if (format != kFormat) {
      model_error(path, fmt::format("has format {}; this version of lathe reads {}", format, kFormat),
                  format < kFormat
                      ? "the weights are fine: start a new run with model.path set to this folder"
                      : "use the version of lathe that wrote it");
    }
    return from_json(json);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // of the JSON library, or a negative count
    model_error(path, fmt::format("is not the state of a run: {}", e.what()), kCheckpointRemedy);
  }
}

void write_old_logprobs(const std::string& checkpoint, const std::vector<std::vector<double>>& old_logprobs) {
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < old_logprobs.size(); ++i) {
    const std::vector<double>& values = old_logprobs[i];
    tensors.push_back({.name = std::to_string(i),
                       .dtype = "F64",
                       .shape = {static_cast<int64_t>(values.size())},
                       .produce = [&values](std::byte* to) {
                         std::memcpy(to, values.data(), values.size() * sizeof(double));
                       }});
  }
  if (!tensors.empty()) {
    write_safetensors(trainer_file(checkpoint, kOldLogprobsName), tensors, {{"format", "lathe"}});
  }
}

std::vector<std::vector<double>> read_old_logprobs(const std::string& checkpoint) {
  const std::string path = trainer_file(checkpoint, kOldLogprobsName);
  std::vector<std::vector<double>> out;
  if (!file_exists(path)) return out;
  const SafetensorsFile file(path);
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const auto found = file.tensors().find(std::to_string(i));
    if (found == file.tensors().end() || found->second.dtype != "F64") {
      model_error(path, fmt::format("has no f64 tensor {}", i), kCheckpointRemedy);
    }
    std::vector<double>& values = out.emplace_back(static_cast<size_t>(found->second.elements()));
    if (!values.empty()) {
      std::memcpy(values.data(), file.bytes(found->second), values.size() * sizeof(double));
    }
  }
  return out;
}

}  // namespace lathe
