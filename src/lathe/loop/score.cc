#include "lathe/loop/score.h"

#include <algorithm>
#include <cmath>

#include "lathe/core/error.h"
#include "lathe/data/rollouts.h"
#include "lathe/io/files.h"
#include "lathe/loop/agreement.h"
#include "lathe/loop/memory_check.h"
#include "lathe/loop/rank_errors.h"
#include "lathe/loop/setup.h"
#include "lathe/mesh/mpi.h"

namespace lathe {
namespace {

struct LineScores {
  std::vector<float> logprobs;
  std::vector<float> entropy;
};

// Rows as long as the longest trajectory, unless a length was set.
int64_t scoring_row_length(const RunConfig& config, const RolloutFile& file) {
  int64_t longest = 0;
  for (const Trajectory& t : file.trajectories) longest = std::max(longest, t.tokens());
  const int64_t alignment = std::max<int64_t>(config.data.segment_alignment, 1);
  if (config.data.row_length == 0) return (longest + alignment - 1) / alignment * alignment;
  for (const Trajectory& t : file.trajectories) {
    if (t.tokens() <= config.data.row_length) continue;
    data_error(fmt::format("{}:{}", file.path, t.line),
               fmt::format("the trajectory has {} tokens, but data.row_length is {}", t.tokens(),
                           config.data.row_length),
               fmt::format("set data.row_length to at least {}, or leave it out", t.tokens()));
  }
  return config.data.row_length;
}

void write_scores(const std::string& out, const RolloutFile& file, const std::vector<LineScores>& scores) {
  AtomicFileWriter writer(out);
  for (const KeptLine& kept : file.lines) {
    std::string line = kept.text;
    if (kept.trajectory >= 0) {  // a bad line stays as it is, so that lines of both files correspond
      const LineScores& s = scores[static_cast<size_t>(kept.trajectory)];
      line = scored_line(line, s.logprobs, s.entropy);
    }
    line += '\n';
    writer.write(line.data(), line.size());
  }
  writer.commit();
}

RolloutFile read_lines(const std::string& path, RolloutOptions options, Log& log) {
  const Activity activity = log.activity("reading " + path, 0, "lines");
  options.on_line = [&activity] { activity.advance(); };
  return read_rollouts(path, options);
}

void check_same_lines(const RolloutFile& file, Communicator& communicator) {
  if (communicator.mesh().size() == 1) return;
  Digest digest;
  for (const KeptLine& line : file.lines) digest.add(line.text);
  check_same_contents(communicator, digest.value(), file.path);
}

// Every token was scored on one of the ranks that share the rows; the others have 0 there.
void collect(std::vector<LineScores>& scores, Communicator& communicator) {
  if (communicator.size(kAxesRows) == 1) return;
  for (const auto field : {&LineScores::logprobs, &LineScores::entropy}) {
    std::vector<double> all;
    for (const LineScores& line : scores) all.insert(all.end(), (line.*field).begin(), (line.*field).end());
    communicator.all_reduce_sum(
        {.axes = kAxesRows, .phase = Phase::kForward, .tensor = "scores", .channel = Channel::kHost}, all);
    auto from = all.begin();
    for (LineScores& line : scores) {
      for (float& value : line.*field) value = static_cast<float>(*from++);
    }
  }
}

ScoreSummary summarize(const RolloutFile& file, const std::vector<LineScores>& scores) {
  ScoreSummary summary;
  summary.bad_lines = file.bad_lines;
  double total = 0;
  double rewarded = 0;
  double unrewarded = 0;
  int64_t rewarded_tokens = 0;
  int64_t unrewarded_tokens = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const Trajectory& t = file.trajectories[i];
    ++summary.trajectories;
    summary.tokens += t.tokens();
    for (size_t j = 0; j < t.completion_ids.size(); ++j) {
      if (t.completion_mask[j] == 0) continue;
      const auto logprob = static_cast<double>(scores[i].logprobs[j]);
      ++summary.scored_tokens;
      total += logprob;
      if (!t.reward.has_value()) continue;
      (*t.reward > 0 ? rewarded : unrewarded) += logprob;
      (*t.reward > 0 ? rewarded_tokens : unrewarded_tokens) += 1;
    }
  }
  summary.mean_logprob = total / static_cast<double>(summary.scored_tokens);
  summary.mean_logprob_rewarded = rewarded / static_cast<double>(rewarded_tokens);
  summary.mean_logprob_unrewarded = unrewarded / static_cast<double>(unrewarded_tokens);
  return summary;
}

std::vector<LineScores> score_lines(Engine& engine, const RolloutFile& file, const PackingOptions& packing,
                                    const MicroBatchOptions& batching, Log& log) {
  std::vector<int64_t> lengths;
  std::vector<LineScores> scores;
  for (const Trajectory& t : file.trajectories) {
    lengths.push_back(t.tokens());
    const std::vector<float> none(t.completion_ids.size(), 0.0F);
    scores.push_back({none, none});
  }
  const Activity activity = log.activity("scoring", static_cast<int64_t>(lengths.size()), "trajectories");
  for (const PackedMicroBatch& packed : pack(lengths, packing)) {
    MicroBatch batch = build_micro_batch(packed, file.trajectories, {}, packing.row_length, batching);
    const auto prepared = engine.prepare(std::move(batch));
    const TokenScores result = engine.score(prepared);
    const MicroBatch& host = prepared->host;
    for (int64_t i = 0; i < host.scored(); ++i) {
      const auto at = static_cast<size_t>(i);
      LineScores& line = scores[static_cast<size_t>(host.item[static_cast<size_t>(host.sequence[at])])];
      const auto position = static_cast<size_t>(host.completion_position[at]);
      line.logprobs[position] = static_cast<float>(result.logprobs[at]);
      line.entropy[position] = static_cast<float>(result.entropy[at]);
    }
    activity.advance(static_cast<int64_t>(host.item.size()));
  }
  return scores;
}

}  // namespace

ScoreSummary score(const RunConfig& config, const std::string& rollouts, const std::string& out, Log& log,
                   const CommunicatorFactory& factory) {
  Notes notes;
  DeviceOptions device_settings = device_options(config, &notes);
  const LoadedModel model = open_model(config.model.path, log);
  RolloutOptions reading;
  reading.vocab_size = model.config.vocab_size;
  reading.skip_bad_lines = config.data.on_bad_line == "skip";
  reading.keep_text = true;
  const RolloutFile file = read_lines(rollouts, reading, log);
  for (const std::string& warning : file.warnings) log.warning("{}", warning);

  PackingOptions packing = packing_options(config);
  packing.row_length = scoring_row_length(config, file);
  check_packing_options(packing);
  check_memory(config, model.config, packing.row_length, /*trains=*/false, rank_memory_bytes());
  Device device(device_settings);
  const std::unique_ptr<Communicator> communicator =
      factory ? factory(*device.memory) : make_communicator(mesh_shape(config.mesh), *device.memory);
  agree_on_isa(*communicator, device, device_settings, &notes);
  check_same_lines(file, *communicator);
  MicroBatchOptions batching = micro_batch_options(config, model.config, *communicator);
  batching.score_all_completion_tokens = true;
  batching.file = file.path;

  check_routed_experts(file.trajectories, batching);
  EngineOptions options = engine_options(config, device_settings, &notes);
  options.frozen = true;
  options.trainable.clear();
  Engine engine(device, *communicator, model.config, model.layout, options, log);
  double start = 0;
  std::vector<LineScores> scores;
  told_to_ranks(*communicator, log, [&] {
    engine.load(*model.folder);
    for (const auto& [key, choice] : notes) {
      if (key != "head.known_cotangent") log.info("{}: {}", key, choice);  // scoring has no loss
    }
    start = steady_seconds();
    scores = score_lines(engine, file, packing, batching, log);
    collect(scores, *communicator);
  });
  ScoreSummary summary = summarize(file, scores);
  summary.seconds = steady_seconds() - start;
  summary.tokens_per_s = static_cast<double>(summary.tokens) / summary.seconds;
  if (communicator->rank() == 0) write_scores(out, file, scores);
  return summary;
}

}  // namespace lathe
