#include "lathe/data/rollout_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lathe/core/error.h"
#include "lathe/data/rollout_keys.h"

namespace lathe {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// Larger values would not survive f32 and point at a fault of the reward function.
constexpr double kLargest = std::numeric_limits<float>::max();
// Samplers take what is colder for greedy; far below, f32 logits divided by it are no longer finite.
constexpr double kColdest = 1e-5;
// Log-probs are at most 0. A sampler's rounding may leave them a little above, probabilities are far above.
constexpr double kDoubtfulLogProb = 1e-3;
constexpr double kWrongLogProb = 0.1;
constexpr const char* kSkipHint = "mend the line, or leave bad lines out with data.on_bad_line: skip";

std::string element(const std::string& name, size_t index) {
  return fmt::format("{}[{}]", name, index);
}

bool is_none(JsonView value, bool infinity_too) {
  if (value.kind() == JsonKind::kNull) return true;
  if (value.kind() != JsonKind::kReal) return false;
  const double number = value.number();
  return std::isnan(number) || (std::isinf(number) && (number < 0 || infinity_too));
}

}  // namespace

RolloutFields::RolloutFields(JsonView object, std::string where, const RolloutOptions& options, Note on_note)
    : where_(std::move(where)), options_(options), on_note_(std::move(on_note)) {
  std::map<std::string_view, bool> names;
  bool names_group = false;
  for (size_t i = 0; i < object.size(); ++i) {
    const std::string_view name = object.name(i);
    if (!names.emplace(name, true).second) fault(std::string(name), "given twice", "each key once");
    const RolloutKey* known = find_rollout_key(name);
    names_group = names_group || (known != nullptr && known->key == "group_id" && !is_weak_group_name(name));
  }
  // What `lathe score` adds is not what the sampler recorded.
  const bool scored = names.contains("logprobs") && names.contains("entropy");
  for (size_t i = 0; i < object.size(); ++i) {
    const std::string_view name = object.name(i);
    const RolloutKey* known = find_rollout_key(name);
    if (known == nullptr) {
      note_name(name, "");
      continue;
    }
    if (known->key.empty() || (scored && name == "logprobs") || (names_group && is_weak_group_name(name)))
      continue;
    const auto [at, fresh] = fields_.emplace(known->key, Found{std::string(name), object.member(i)});
    if (!fresh) {
      fault(std::string(name), fmt::format("names the same as {}, which is given too", at->second.name),
            "one of the two");
    }
    if (name != known->key) note_name(name, known->key);
  }
}

void RolloutFields::note_name(std::string_view name, std::string_view key) const {
  const std::string shown(name.substr(0, 64));
  if (!key.empty()) {
    on_note_(shown, fmt::format("{}: {} is read as {}", where_, shown, key));
    return;
  }
  const std::string nearest = nearest_rollout_key(name);
  on_note_(shown, fmt::format("{}: unknown key {} is not read{}", where_, shown,
                              nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
}

const RolloutFields::Found* RolloutFields::find(std::string_view key) const {
  const auto at = fields_.find(key);
  return at == fields_.end() ? nullptr : &at->second;
}

const RolloutFields::Found* RolloutFields::present(std::string_view key) const {
  const Found* found = find(key);
  return found == nullptr || found->value.kind() == JsonKind::kNull ? nullptr : found;
}

const RolloutFields::Found& RolloutFields::require(std::string_view key) const {
  const Found* found = find(key);
  if (found == nullptr) fault(std::string(key), "missing", "an array of token ids");
  return *found;
}

void RolloutFields::fault(const std::string& place, const std::string& value, const std::string& expected,
                          const std::string& hint) const {
  data_error(where_, fmt::format("{}: {}, expected {}", place, value, expected),
             hint.empty() ? kSkipHint : hint);
}

int64_t RolloutFields::integer(const Found& field, const std::string& expected) const {
  const auto value = field.value.integer();
  if (!value) fault(field.name, field.value.text(), expected);
  return *value;
}

double RolloutFields::finite(const std::string& place, JsonView value, const std::string& expected) const {
  if (!value.is_number() || !(std::abs(value.number()) <= kLargest)) fault(place, value.text(), expected);
  return value.number();
}

std::vector<int32_t> RolloutFields::ids(const Found& field) const {
  const int64_t limit = options_.vocab_size > 0 ? options_.vocab_size : int64_t{1} << 31;
  if (field.value.kind() != JsonKind::kArray) fault(field.name, field.value.text(), "an array of token ids");
  if (field.value.size() == 0) fault(field.name, "empty", "at least one token id");
  std::vector<int32_t> out;
  out.reserve(field.value.size());
  for (size_t i = 0; i < field.value.size(); ++i) {
    const JsonView value = field.value.at(i);
    const auto id = value.integer();
    if (!id || *id < 0 || *id >= limit) {
      fault(element(field.name, i), value.text(), fmt::format("an integer in [0, {})", limit),
            value.kind() == JsonKind::kInteger ? "were these tokens made with the tokenizer of this model?"
                                               : "");
    }
    out.push_back(static_cast<int32_t>(*id));
  }
  return out;
}

size_t RolloutFields::completion_offset(const Found& field, bool whole_allowed) const {
  const size_t c = t_.completion_ids.size();
  const size_t p = t_.prompt_ids.size();
  if (field.value.kind() != JsonKind::kArray) {
    fault(field.name, field.value.text(),
          fmt::format("an array of {} values, one for each completion token", c));
  }
  if (field.value.size() == c) return 0;
  if (whole_allowed && field.value.size() == p + c) return p;
  fault(field.name, fmt::format("{} values", field.value.size()),
        fmt::format("{}, one for each completion token{}", c,
                    whole_allowed ? fmt::format(", or {} with the prompt", p + c) : ""));
}

std::vector<uint8_t> RolloutFields::mask_values(const Found& field) const {
  if (field.value.kind() != JsonKind::kArray) fault(field.name, field.value.text(), "an array of 0 and 1");
  std::vector<uint8_t> out(field.value.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const JsonView value = field.value.at(i);
    const bool good = value.kind() == JsonKind::kBool ||
                      (value.is_number() && (value.number() == 0 || value.number() == 1));
    if (!good) fault(element(field.name, i), value.text(), "0 or 1");
    const bool scored = value.kind() == JsonKind::kBool ? value.boolean() : value.number() == 1;
    out[i] = scored ? 1 : 0;
  }
  return out;
}

void RolloutFields::read_mask() {
  t_.completion_mask.assign(t_.completion_ids.size(), 1);
  const Found* field = present("completion_mask");
  if (field == nullptr) return;
  // Peers' masks may cover the whole sequence; ours is of the completion.
  const size_t offset = completion_offset(*field, field->name != "completion_mask");
  const auto values = mask_values(*field);
  t_.completion_mask.assign(values.begin() + static_cast<std::ptrdiff_t>(offset), values.end());
}

void RolloutFields::read_status() {
  const Found* status = find("status");
  const Found* truncated = present("truncated");
  if (status != nullptr) {
    const std::map<std::string_view, TrajectoryStatus> names = {{"completed", TrajectoryStatus::kCompleted},
                                                                {"truncated", TrajectoryStatus::kTruncated},
                                                                {"aborted", TrajectoryStatus::kAborted},
                                                                {"failed", TrajectoryStatus::kFailed}};
    const auto at =
        status->value.kind() == JsonKind::kString ? names.find(status->value.string()) : names.end();
    if (at == names.end()) {
      fault(status->name, status->value.text(), "\"completed\", \"truncated\", \"aborted\" or \"failed\"");
    }
    t_.status = at->second;
  }
  if (truncated == nullptr) return;
  if (truncated->value.kind() != JsonKind::kBool)
    fault(truncated->name, truncated->value.text(), "true or false");
  const bool is_truncated = truncated->value.boolean();
  if (status == nullptr) {
    t_.status = is_truncated ? TrajectoryStatus::kTruncated : TrajectoryStatus::kCompleted;
  } else if (is_truncated == (t_.status == TrajectoryStatus::kCompleted)) {
    fault(truncated->name, truncated->value.text(), fmt::format("what status {} says", status->value.text()));
  }
}

double RolloutFields::weighted_reward(const Found& field) {
  if (field.value.size() == 0) fault(field.name, "an empty object", "at least one part");
  for (size_t i = 0; i < field.value.size(); ++i) {
    const std::string name(field.value.name(i));
    const std::string place = fmt::format("{}.{}", field.name, name);
    const double value = finite(place, field.value.member(i), "a finite number");
    if (!t_.reward_parts.emplace(name, value).second) fault(place, "given twice", "each part once");
  }
  for (const auto& [name, weight] : options_.reward_weights) {
    if (t_.reward_parts.contains(name)) continue;
    std::vector<std::string> parts;
    for (const auto& part : t_.reward_parts) parts.push_back(part.first);
    fault(fmt::format("{}.{}", field.name, name), "missing",
          fmt::format("it, for grpo.reward_weights names it; this line has {}", fmt::join(parts, ", ")),
          "correct grpo.reward_weights, or give the part on every line");
  }
  double sum = 0;
  for (const auto& [name, value] : t_.reward_parts) {
    const auto weight = options_.reward_weights.find(name);
    sum += (weight == options_.reward_weights.end() ? 1.0 : weight->second) * value;
  }
  if (!(std::abs(sum) <= kLargest)) {
    fault(field.name, fmt::format("a weighted sum of {}", sum), "a finite one", "lower grpo.reward_weights");
  }
  return sum;
}

void RolloutFields::read_reward() {
  const Found* field = find("reward");
  const bool given = field != nullptr && field->value.kind() != JsonKind::kNull;
  if (!given) {
    if (options_.need_reward && t_.trains() && present("advantage") == nullptr) {
      fault(field == nullptr ? "reward" : field->name, field == nullptr ? "missing" : "null",
            "a finite number, an object of them, or an advantage instead");
    }
    return;
  }
  if (field->value.kind() == JsonKind::kObject) {
    t_.reward = weighted_reward(*field);
    return;
  }
  t_.reward = finite(field->name, field->value, "a finite number, or an object of them");
  if (!options_.reward_weights.empty()) {
    fault(field->name, field->value.text(),
          fmt::format("an object with the parts that grpo.reward_weights weighs, such as {}",
                      options_.reward_weights.begin()->first),
          "give the parts, or drop grpo.reward_weights");
  }
}

void RolloutFields::read_advantage() {
  const Found* field = present("advantage");
  if (field == nullptr) return;
  const std::string expected = "a finite number";
  if (field->value.kind() != JsonKind::kArray) {
    t_.advantage = {finite(field->name, field->value, "a finite number, or one for each completion token")};
    return;
  }
  const size_t offset = completion_offset(*field, whole_);
  for (size_t j = 0; j < t_.completion_ids.size(); ++j) {
    const JsonView value = field->value.at(offset + j);
    const bool none = t_.completion_mask[j] == 0 && is_none(value, true);
    t_.advantage.push_back(none ? 0.0 : finite(element(field->name, offset + j), value, expected));
  }
}

std::vector<double> RolloutFields::logprobs(std::string_view key, bool may_be_missing) const {
  std::vector<double> out;
  const Found* field = present(key);
  if (field == nullptr) return out;
  const size_t offset = completion_offset(*field, whole_);
  out.reserve(t_.completion_ids.size());
  for (size_t j = 0; j < t_.completion_ids.size(); ++j) {
    const JsonView value = field->value.at(offset + j);
    const bool scored = t_.completion_mask[j] != 0;
    if (is_none(value, !scored) && (may_be_missing || !scored)) {
      out.push_back(kNone);
      continue;
    }
    out.push_back(finite(element(field->name, offset + j), value,
                         may_be_missing ? "a number, or null, NaN or -Infinity for none"
                                        : "a finite number at a scored token"));
    if (scored && out.back() > kDoubtfulLogProb)
      check_log_of_probability(field->name, offset + j, out.back());
  }
  return out;
}

void RolloutFields::check_log_of_probability(const std::string& name, size_t index, double value) const {
  if (value > kWrongLogProb) {
    fault(element(name, index), fmt::format("{}", value), "at most 0, for it is the log of a probability",
          "were probabilities or negated values recorded?");
  }
  on_note_("positive " + name,
           fmt::format("{}: {} is {}, above 0, where the log of a probability cannot be; more "
                       "such values are not named",
                       where_, element(name, index), value));
}

void RolloutFields::read_temperature() {
  const Found* field = find("temperature");
  if (field == nullptr) return;
  const std::string expected = fmt::format("a finite number >= {}", kColdest);
  const char* hint =
      "record the temperature that the tokens were sampled at; greedy samples have none to train with";
  const auto positive = [&](const std::string& place, JsonView value) {
    const bool good = value.is_number() && value.number() >= kColdest && value.number() <= kLargest;
    if (!good) fault(place, value.text(), expected, hint);
    return value.number();
  };
  if (field->value.kind() != JsonKind::kArray) {
    t_.temperature = positive(field->name, field->value);
    return;
  }
  const size_t offset = completion_offset(*field, whole_);
  t_.temperature = positive(element(field->name, offset), field->value.at(offset));
  for (size_t i = offset + 1; i < field->value.size(); ++i) {
    if (positive(element(field->name, i), field->value.at(i)) == t_.temperature) continue;
    fault(element(field->name, i), field->value.at(i).text(),
          fmt::format("{}, as at the first token", t_.temperature), "one trajectory has one temperature");
  }
}

void RolloutFields::read_labels() {
  if (const Found* group = present("group_id")) {
    const JsonKind kind = group->value.kind();
    if (kind != JsonKind::kInteger && kind != JsonKind::kString) {
      fault(group->name, group->value.text(), "an integer or a string");
    }
    t_.group = kind == JsonKind::kInteger ? "i:" + group->value.integer_text()
                                          : "s:" + std::string(group->value.string());
  }
  if (const Found* version = present("policy_version")) t_.policy_version = integer(*version, "an integer");
  if (const Found* env = present("env")) {
    t_.env = env->value.kind() == JsonKind::kString ? std::string(env->value.string()) : env->value.text();
  }
}

Trajectory RolloutFields::read() {
  read_tokens();
  read_mask();
  read_status();
  read_reward();
  read_advantage();
  t_.rollout_logprobs = logprobs("rollout_logprobs", true);
  t_.old_logprobs = logprobs("old_logprobs", false);
  t_.ref_logprobs = logprobs("ref_logprobs", false);
  read_temperature();
  read_labels();
  read_routed_experts();
  return std::move(t_);
}

}  // namespace lathe
