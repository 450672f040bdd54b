// What a rollout file holds (`lathe inspect`). Reads it line by line: memory does not grow with the file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lathe {

struct Spread {
  int64_t count = 0;
  double min = 0;
  double mean = 0;
  double max = 0;
  double std = 0;  // with n - 1; 0 below two

  void add(double value);

 private:
  double squares_ = 0;  // around the running mean
};

struct RolloutReport {
  int64_t trajectories = 0;
  int64_t groups = 0;
  int64_t tokens = 0;
  int64_t scored_tokens = 0;
  Spread lengths;  // tokens of a trajectory
  Spread prompt_lengths;
  Spread completion_lengths;
  Spread reward;  // of trajectories that have one
  std::map<std::string, Spread> reward_parts;
  std::map<std::string, int64_t> status;  // name: trajectories
  std::map<std::string, int64_t> env;     // label: trajectories
  int64_t with_advantage = 0;
  int64_t with_rollout_logprobs = 0;
  int64_t with_old_logprobs = 0;
  int64_t with_ref_logprobs = 0;
  int64_t with_routed_experts = 0;
  std::vector<std::string>
      problems;  // one for each bad line up to 100, then their number; an empty file is one
  std::vector<std::string> warnings;
};

// vocab_size 0: ids are not checked against it. Data error only when the file cannot be read.
// on_line: called after every line, for a display.
[[nodiscard]] RolloutReport inspect_rollouts(const std::string& path, int64_t vocab_size = 0,
                                             const std::function<void()>& on_line = {});

}  // namespace lathe
