// The fields of one rollout line: found by any of their names, read with their checks.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/json_view.h"
#include "lathe/data/rollouts.h"
#include "lathe/data/trajectory.h"

namespace lathe {

class RolloutFields {
 public:
  // where: file:line. on_note hears of names that are unknown or stand for one of our keys, and of values that are
  // doubtful: what it is about (one warning each is enough), and the warning.
  using Note = std::function<void(const std::string& about, const std::string& warning)>;
  RolloutFields(JsonView object, std::string where, const RolloutOptions& options, Note on_note);

  // Everything but the default group; group is empty when the line names none.
  [[nodiscard]] Trajectory read();

 private:
  struct Found {
    std::string name;
    JsonView value;
  };
  [[nodiscard]] const Found* find(std::string_view key) const;     // any value
  [[nodiscard]] const Found* present(std::string_view key) const;  // not null
  const Found& require(std::string_view key) const;
  [[noreturn]] void fault(const std::string& place, const std::string& value, const std::string& expected,
                          const std::string& hint = "") const;

  [[nodiscard]] int64_t integer(const Found& field, const std::string& expected) const;
  [[nodiscard]] double finite(const std::string& place, JsonView value, const std::string& expected) const;
  [[nodiscard]] std::vector<int32_t> ids(const Found& field) const;
  void read_tokens();
  void split_whole_sequence(const Found& tokens);
  void compare_whole_sequence(const Found& tokens) const;
  // Where the completion's values begin in an array of c values, or of p + c where that may be.
  [[nodiscard]] size_t completion_offset(const Found& field, bool whole_allowed) const;
  [[nodiscard]] std::vector<uint8_t> mask_values(const Found& field) const;
  void read_mask();
  void read_status();
  void read_reward();
  [[nodiscard]] double weighted_reward(const Found& field);
  void read_advantage();
  void note_name(std::string_view name, std::string_view key) const;
  [[nodiscard]] std::vector<double> logprobs(std::string_view key, bool may_be_missing) const;
  void check_log_of_probability(const std::string& name, size_t index, double value) const;
  void read_temperature();
  void read_labels();
  void read_routed_experts();

  std::string where_;
  const RolloutOptions& options_;
  Note on_note_;
  std::map<std::string_view, Found> fields_;
  bool whole_ = false;  // tokens came as one list
  Trajectory t_;
};

}  // namespace lathe
