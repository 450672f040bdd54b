// What a step's metrics mean where people take them for faults, or do not see one. Said once a run:
// - of step 1, what the ratio and the loss are before the first update;
// - no group has a spread of rewards (or two trajectories), so that every advantage is 0;
// - the sampler's log-probs differ from the trainer's in one direction;
// - experts had no room for some of their tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lathe {

struct Hint {
  bool warning = false;
  std::string text;
};

class StepHints {
 public:
  [[nodiscard]] std::vector<Hint> check(int64_t step,
                                        const std::vector<std::pair<std::string, double>>& metrics);

  // What was said and at which step, for a checkpoint.
  [[nodiscard]] std::map<std::string, std::vector<double>> said() const { return said_; }
  void restore(const std::map<std::string, std::vector<double>>& said);

 private:
  // True the first time for this name.
  [[nodiscard]] bool first_time(const std::string& name, int64_t step);

  std::map<std::string, std::vector<double>> said_;
};

}  // namespace lathe
