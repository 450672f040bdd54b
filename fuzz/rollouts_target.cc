#include <algorithm>
#include <cmath>
#include <vector>

#include "lathe/data/groups.h"
#include "lathe/data/inspect.h"
#include "lathe/data/rollouts.h"

#include "fuzz/scratch_folder.h"
#include "fuzz/targets.h"

namespace lathe::fuzz {
namespace {

void check_trajectory(const Trajectory& t, int64_t vocab_size) {
  const size_t c = t.completion_ids.size();
  expect(!t.prompt_ids.empty() && c > 0, "an empty prompt or completion");
  expect(t.completion_mask.size() == c, "a mask of another length");
  for (const auto* values : {&t.rollout_logprobs, &t.old_logprobs, &t.ref_logprobs}) {
    expect(values->empty() || values->size() == c, "log-probs of another length");
  }
  for (const auto* ids : {&t.prompt_ids, &t.completion_ids}) {
    for (const int32_t id : *ids)
      expect(id >= 0 && (vocab_size == 0 || id < vocab_size), "an id outside the vocabulary");
  }
  expect(std::isfinite(t.temperature) && t.temperature > 0, "a temperature that is not above 0");
  expect(!t.reward.has_value() || std::isfinite(*t.reward), "a reward that is not finite");
  for (const double advantage : t.advantage)
    expect(std::isfinite(advantage), "an advantage that is not finite");
  if (!t.routed_experts) return;
  const RoutedExperts& r = *t.routed_experts;
  expect(static_cast<int64_t>(r.data.size()) == r.tokens * r.layers * r.top_k, "routing of another size");
}

// A scored line must read back as the same trajectory.
void check_scored_line(const ScratchFolder& scratch, const std::string& text, const Trajectory& t) {
  const std::vector<float> values(t.completion_ids.size(), -0.5F);
  const std::string file = scratch.write("scored.jsonl", scored_line(text, values, values));
  const RolloutFile read = read_rollouts(file, {});
  expect(read.trajectories.size() == 1 && read.trajectories[0].prompt_ids == t.prompt_ids &&
             read.trajectories[0].completion_ids == t.completion_ids,
         "a scored line reads back differently");
}

void train_on(const std::vector<Trajectory>& trajectories) {
  for (const AdvantageEstimator estimator :
       {AdvantageEstimator::kGrpo, AdvantageEstimator::kDrGrpo, AdvantageEstimator::kRloo}) {
    GrpoConfig config;
    config.advantage_estimator = estimator;
    GroupStats stats;
    for (const std::vector<double>& advantages : step_advantages(trajectories, config, &stats)) {
      for (const double advantage : advantages)
        expect(std::isfinite(advantage), "an estimated advantage that is not finite");
    }
  }
}

}  // namespace

void fuzz_rollouts(std::string_view bytes) {
  static const ScratchFolder scratch;
  const std::string path = scratch.write("rollouts.jsonl", bytes);
  RolloutFile file;
  const auto read = [&](const RolloutOptions& options) {
    return accepts(ErrorKind::kData, [&] { file = read_rollouts(path, options); });
  };
  RolloutOptions scoring;
  scoring.skip_bad_lines = true;
  scoring.keep_text = true;
  if (read(scoring)) {
    for (const Trajectory& t : file.trajectories) check_trajectory(t, 0);
    for (size_t i = 0; i < std::min<size_t>(file.lines.size(), 8); ++i) {
      const KeptLine& line = file.lines[i];
      if (line.trajectory < 0) continue;
      check_scored_line(scratch, line.text, file.trajectories.at(static_cast<size_t>(line.trajectory)));
    }
  }
  constexpr int64_t kVocabulary = 100;
  RolloutOptions training;
  training.vocab_size = kVocabulary;
  training.reward_weights = {{"a", 1e300}, {"b", -2}};
  training.need_reward = true;
  if (read(training)) {
    for (const Trajectory& t : file.trajectories) check_trajectory(t, kVocabulary);
    train_on(file.trajectories);
  }
  static_cast<void>(accepts(ErrorKind::kData, [&] { static_cast<void>(inspect_rollouts(path)); }));
}

}  // namespace lathe::fuzz
