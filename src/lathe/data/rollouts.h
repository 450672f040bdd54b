// Rollout files: JSON Lines, one trajectory a line (docs/rollouts.md), plain or gzip. Peers' key names are
// aliases.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lathe/data/trajectory.h"

namespace lathe {

struct RolloutOptions {
  int64_t vocab_size = 0;                        // ids must be below; 0 = not checked
  bool skip_bad_lines = false;                   // data.on_bad_line: skip
  std::map<std::string, double> reward_weights;  // grpo.reward_weights
  bool need_reward = false;                      // train: a reward or an advantage must be there
  bool keep_text = false;                        // score: keep each line's text
  int64_t bytes = -1;                            // so many of the file's, as they lie on disk; -1 = all
  std::function<void()> on_line;                 // called after every line, for a display; may be empty
};

struct KeptLine {
  std::string text;         // without the line break
  int64_t trajectory = -1;  // its index; -1: a bad line that was left out
};

struct RolloutFile {
  std::string path;
  std::vector<Trajectory> trajectories;
  std::vector<KeptLine> lines;  // keep_text: every line but blank ones, in order
  int64_t bad_lines = 0;        // skipped
  std::vector<std::string>
      warnings;  // each with file and line: unknown keys and other names, once each; bad lines
};

// Data errors (exit 3): file:line, key, value, expectation, remedy.
[[nodiscard]] RolloutFile read_rollouts(const std::string& path, const RolloutOptions& options);

// data.rollouts: a file, a glob, or a folder of step_*.jsonl(.gz): the files in order. Nothing found is a
// data error.
[[nodiscard]] std::vector<std::string> rollout_files(const std::string& pattern);
// The same, but nothing found is nothing, and files that are being written are left out: names that begin with a dot or
// end in .tmp or .partial.
[[nodiscard]] std::vector<std::string> rollout_files_so_far(const std::string& pattern);
// Whether `a` comes before `b`: digits compare as numbers.
[[nodiscard]] bool rollout_file_before(const std::string& a, const std::string& b);

// The line with "logprobs" and "entropy" [c] added; null where not finite; f32 text that reads back exactly. If both
// were there they are replaced. "logprobs" alone are the sampler's: they stay, as "rollout_logprobs".
[[nodiscard]] std::string scored_line(const std::string& text, const std::vector<float>& logprobs,
                                      const std::vector<float>& entropy);

}  // namespace lathe
