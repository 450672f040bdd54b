// One line of a rollout file to a trajectory. Everything wrong with it is a data error of this form:
// `file:line: key: value, expected ...`.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/rollouts.h"
#include "lathe/data/trajectory.h"

namespace lathe {

class RolloutLineParser {
 public:
  RolloutLineParser(std::string path, const RolloutOptions& options);

  // line: 1-based. Lines come in the file's order: without group ids, equal prompts of consecutive lines are
  // a group.
  [[nodiscard]] Trajectory parse(std::string_view text, int64_t line);

  // Unknown keys (once each, with the nearest known name) and other names that were understood.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void warn_once(const std::string& about, const std::string& message);
  void set_default_group(Trajectory& t, int64_t line);

  std::string path_;
  const RolloutOptions& options_;
  std::set<std::string> warned_;
  std::vector<std::string> warnings_;
  std::vector<int32_t> previous_prompt_;
  int64_t previous_line_ = -1;
  int64_t prompt_group_ = 0;
};

}  // namespace lathe
