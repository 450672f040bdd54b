#include "lathe/loop/train_state.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/engine/checkpoint_files.h"
#include "lathe/io/files.h"
#include "lathe/io/safetensors.h"
#include "lathe/loop/checkpoints.h"

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

// The value of a key of state.json, or of a dotted path of keys; a model error names the file, the key, the value and what
// was expected.
class StateReader {
 public:
  StateReader(const std::string& path, const Json& json) : path_(path), json_(json) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& value,
                           const std::string& expected) const {
    model_error(path_, fmt::format("{} is {}, expected {}", key, value, expected), kCheckpointRemedy);
  }
  // The library would cut 1.5 and wrap -1.
  [[nodiscard]] uint64_t number(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned()) refuse(key, shown(value), "a whole number of at least 0");
    return value.get<uint64_t>();
  }
  [[nodiscard]] int64_t count(const std::string& key) const {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    const uint64_t value = number(key);
    if (value > kMost) refuse(key, std::to_string(value), fmt::format("at most {}", kMost));
    return static_cast<int64_t>(value);
  }
  [[nodiscard]] std::string text(const std::string& key) const { return text_of(key, at(key)); }
  [[nodiscard]] std::vector<double> numbers(const std::string& key) const { return numbers_of(key, at(key)); }
  [[nodiscard]] std::vector<std::string> texts(const std::string& key) const {
    std::vector<std::string> out;
    for (const Json& item : list_of(key, at(key))) out.push_back(text_of(key + "[]", item));
    return out;
  }
  [[nodiscard]] RollingStats rolling(const std::string& key) const {
    RollingStats out;
    for (const auto& [name, value] : object(key).items()) out[name] = numbers_of(key + "." + name, value);
    return out;
  }
  [[nodiscard]] std::map<std::string, std::string> map_of_texts(const std::string& key) const {
    std::map<std::string, std::string> out;
    for (const auto& [name, value] : object(key).items()) out[name] = text_of(key + "." + name, value);
    return out;
  }

 private:
  [[nodiscard]] const Json& at(const std::string& key) const {
    const Json* value = &json_;
    for (size_t begin = 0; begin <= key.size();) {
      const size_t end = std::min(key.find('.', begin), key.size());
      const std::string name = key.substr(begin, end - begin);
      if (!value->is_object()) {
        refuse(begin == 0 ? "the file" : key.substr(0, begin - 1), shown(*value), "an object");
      }
      const auto found = value->find(name);
      if (found == value->end()) refuse(key.substr(0, end), "missing", "a value");
      value = &*found;
      begin = end + 1;
    }
    return *value;
  }
  [[nodiscard]] const Json& object(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_object()) refuse(key, shown(value), "an object");
    return value;
  }
  [[nodiscard]] const Json& list_of(const std::string& key, const Json& value) const {
    if (!value.is_array()) refuse(key, shown(value), "a list");
    return value;
  }
  [[nodiscard]] std::string text_of(const std::string& key, const Json& value) const {
    if (!value.is_string()) refuse(key, shown(value), "a string");
    return value.get<std::string>();
  }
  [[nodiscard]] std::vector<double> numbers_of(const std::string& key, const Json& value) const {
    std::vector<double> out;
    for (const Json& item : list_of(key, value)) {
      if (!item.is_number()) refuse(key + "[]", shown(item), "a number");
      out.push_back(item.get<double>());
    }
    return out;
  }
  [[nodiscard]] static std::string shown(const Json& value) {
    constexpr size_t kLongest = 80;
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
  }

  const std::string& path_;
  const Json& json_;
};

TrainState from_json(const StateReader& json) {
  TrainState state;
  state.version = json.text("lathe");
  state.counters.step = json.count("step");
  state.counters.applied_steps = json.count("applied_steps");
  state.counters.loss_window = json.numbers("loss_window");
  state.counters.grad_norm_window = json.numbers("grad_norm_window");
  state.micro_batches = json.count("micro_batches");
  state.step_micro_batches = json.count("step_micro_batches");
  state.position.batch = {
      .epoch = json.count("data.epoch"), .file = json.count("data.file"), .batch = json.count("data.batch")};
  state.position.iteration = json.count("data.iteration");
  state.files = json.texts("data.files");
  state.file_bytes = json.number("data.file_bytes");
  state.seed = json.number("seed");
  state.rolling = json.rolling("rolling");
  state.base = {.config = json.text("base.config"),
                .tensors = json.text("base.tensors"),
                .weights = json.text("base.weights")};
  state.branched_from = json.text("branched_from");
  state.settings = json.map_of_texts("settings");
  return state;
}

// What cannot be so at once: a file that was changed by hand, or one of another checkpoint.
void check_consistent(const StateReader& json, const TrainState& state, const std::string& checkpoint) {
  const auto expect = [&](bool holds, const char* key, auto value, const std::string& expected) {
    if (!holds) json.refuse(key, fmt::format("{}", value), expected);
  };
  const std::string folder = std::filesystem::path(checkpoint).filename().string();
  if (const auto name = parse_checkpoint_name(folder); name.has_value()) {
    const std::string as = fmt::format(" as the name of the folder {} says", folder);
    expect(state.counters.step == name->step, "step", state.counters.step, std::to_string(name->step) + as);
    expect(state.micro_batches == name->micro_batches, "micro_batches", state.micro_batches,
           std::to_string(name->micro_batches) + as);
  }
  expect(state.counters.applied_steps <= state.counters.step, "applied_steps", state.counters.applied_steps,
         fmt::format("at most step, {}", state.counters.step));
  if (state.micro_batches == 0) {
    expect(state.step_micro_batches == 0, "step_micro_batches", state.step_micro_batches,
           "0, because micro_batches is 0");
  } else {
    expect(state.step_micro_batches >= state.micro_batches, "step_micro_batches", state.step_micro_batches,
           fmt::format("at least micro_batches, {}", state.micro_batches));
  }
  const bool within =
      state.micro_batches > 0 || state.position.batch.batch > 0 || state.position.iteration > 0;
  const auto files = static_cast<int64_t>(state.files.size());
  expect(state.position.batch.file <= files - (within ? 1 : 0), "data.file", state.position.batch.file,
         fmt::format("at most {}: data.files has {}", files - (within ? 1 : 0), files));
  expect(within || state.file_bytes == 0, "data.file_bytes", state.file_bytes, "0 where no file is in use");
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
  const StateReader reader(path, json);
  const int64_t format = reader.count("format");
  if (format != kFormat) {
    model_error(path, fmt::format("has format {}; this version of lathe reads {}", format, kFormat),
                format < kFormat ? "the weights are fine: start a new run with model.path set to this folder"
                                 : "use the version of lathe that wrote it");
  }
  TrainState state = from_json(reader);
  check_consistent(reader, state, checkpoint);
  return state;
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
