#include "lathe/data/inspect.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "lathe/core/error.h"
#include "lathe/data/line_reader.h"
#include "lathe/data/rollout_line.h"

namespace lathe {
namespace {

constexpr int64_t kListedProblems = 100;

const char* status_name(TrajectoryStatus status) {
  switch (status) {
    case TrajectoryStatus::kCompleted:
      return "completed";
    case TrajectoryStatus::kTruncated:
      return "truncated";
    case TrajectoryStatus::kAborted:
      return "aborted";
    case TrajectoryStatus::kFailed:
      return "failed";
  }
  return "";
}

void add_trajectory(const Trajectory& t, RolloutReport& report) {
  ++report.trajectories;
  report.tokens += t.tokens();
  report.scored_tokens += t.scored_tokens();
  report.lengths.add(static_cast<double>(t.tokens()));
  report.prompt_lengths.add(static_cast<double>(t.prompt_ids.size()));
  report.completion_lengths.add(static_cast<double>(t.completion_ids.size()));
  if (t.reward) report.reward.add(*t.reward);
  for (const auto& [name, value] : t.reward_parts) report.reward_parts[name].add(value);
  ++report.status[status_name(t.status)];
  if (!t.env.empty()) ++report.env[t.env];
  report.with_advantage += t.advantage.empty() ? 0 : 1;
  report.with_rollout_logprobs += t.rollout_logprobs.empty() ? 0 : 1;
  report.with_old_logprobs += t.old_logprobs.empty() ? 0 : 1;
  report.with_ref_logprobs += t.ref_logprobs.empty() ? 0 : 1;
  report.with_routed_experts += t.routed_experts ? 1 : 0;
}

}  // namespace

void Spread::add(double value) {
  ++count;
  min = count == 1 ? value : std::min(min, value);
  max = count == 1 ? value : std::max(max, value);
  const double step = value - mean;
  mean += step / static_cast<double>(count);
  squares_ += step * (value - mean);
  std = count < 2 ? 0 : std::sqrt(squares_ / static_cast<double>(count - 1));
}

RolloutReport inspect_rollouts(const std::string& path, int64_t vocab_size,
                               const std::function<void()>& on_line) {
  RolloutReport report;
  RolloutOptions options;
  options.vocab_size = vocab_size;
  LineReader reader(path);
  RolloutLineParser parser(path, options);
  std::set<std::string> groups;
  int64_t bad_lines = 0;
  for (std::string line; reader.next(line);) {
    if (on_line) on_line();
    if (is_blank(line)) continue;
    try {
      const Trajectory t = parser.parse(line, reader.line_number());
      add_trajectory(t, report);
      groups.insert(t.group);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData) throw;
      if (++bad_lines <= kListedProblems) report.problems.emplace_back(error.what());
    }
  }
  if (bad_lines > kListedProblems) {
    report.problems.push_back(fmt::format("{}: {} bad lines altogether", path, bad_lines));
  }
  report.groups = static_cast<int64_t>(groups.size());
  if (report.trajectories == 0 && report.problems.empty()) {
    report.problems.push_back(path + ": no trajectories, expected one JSON object a line");
  }
  report.warnings = parser.warnings();
  return report;
}

}  // namespace lathe
