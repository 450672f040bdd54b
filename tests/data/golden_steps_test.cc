// The golden cases from the rollout file to the loss, with the model's part given: the stored log-probs and entropies.
// Reading, groups, packing, micro-batches, loss and metrics must give the stored objective and numbers.
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/data/groups.h"
#include "lathe/data/micro_batch.h"
#include "lathe/data/rollouts.h"
#include "lathe/data/step_checks.h"
#include "lathe/grpo/loss.h"

#include "grpo/config_json.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

std::string golden(const std::string& name) {
  return std::string(LATHE_GOLDENS) + "/" + name;
}

// The two-level "section:" / "  key: value" text of the cases' run files.
Json read_run_file(const std::string& path) {
  Json run;
  std::string section;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line[0] != ' ') {
      section = line.substr(0, colon);
      continue;
    }
    const std::string value = line.substr(colon + 2);
    const Json parsed = Json::parse(value, nullptr, false);
    run[section][line.substr(2, colon - 2)] = parsed.is_discarded() ? Json(value) : parsed;
  }
  return run;
}

PackingOptions packing_options(const Json& data) {
  PackingOptions options;
  options.row_length = data.at("row_length");
  options.rows_per_micro_batch = data.at("rows_per_micro_batch");
  options.max_segments = data.at("max_segments");
  options.segment_alignment = data.at("segment_alignment");
  options.pad_at_start = data.value("pad_position", "end") == "start";
  options.pad_alignment = data.value("pad_alignment", 4096);
  return options;
}

struct Scores {
  std::vector<std::vector<double>> logprobs, entropy;
};

Scores read_scores(const std::string& path) {
  Scores scores;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    scores.logprobs.push_back(json.at("logprobs"));
    scores.entropy.push_back(json.at("entropy"));
  }
  return scores;
}

LossResult micro_batch_loss(const GrpoConfig& config, const MicroBatch& m, const std::vector<size_t>& lines,
                            const Scores& scores) {
  std::vector<double> live;
  std::vector<double> entropy;
  for (size_t i = 0; i < m.hidden_index.size(); ++i) {
    const size_t line = lines[static_cast<size_t>(m.item[static_cast<size_t>(m.sequence[i])])];
    live.push_back(scores.logprobs[line][static_cast<size_t>(m.completion_position[i])]);
    entropy.push_back(scores.entropy[line][static_cast<size_t>(m.completion_position[i])]);
  }
  const std::vector<uint8_t> mask(live.size(), 1);
  LossInputs in;
  in.logprobs = live;
  in.entropy = entropy;
  in.advantage = m.advantage;
  in.mask = mask;
  in.sequence = m.sequence;
  in.sequences = m.sequences();
  in.old_logprobs = m.old_logprobs;
  in.ref_logprobs = m.ref_logprobs;
  in.rollout_logprobs = m.rollout_logprobs;
  in.overlong = m.overlong;
  return grpo_loss(config, in);
}

class GoldenStep : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenStep, ObjectiveAndMetrics) {
  const std::string folder = golden(GetParam());
  const Json run = read_run_file(folder + "/run.yaml");
  const GrpoConfig config = run.contains("grpo") ? read_config(run.at("grpo")) : GrpoConfig();
  check_grpo_config(config);
  RolloutOptions reading;
  reading.need_reward = true;
  const RolloutFile file = read_rollouts(folder + "/rollouts.jsonl", reading);
  EXPECT_TRUE(file.warnings.empty());
  const auto advantages = step_advantages(file.trajectories, config, nullptr);
  const Json expected = Json::parse(std::ifstream(folder + "/expected.json"));

  std::vector<Trajectory> trained;
  std::vector<std::vector<double>> trained_advantages;
  std::vector<size_t> lines;
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < file.trajectories.size(); ++i) {
    if (!file.trajectories[i].trains()) continue;
    trained.push_back(file.trajectories[i]);
    trained_advantages.push_back(advantages[i]);
    lines.push_back(i);
    lengths.push_back(trained.back().tokens());
    // The case with advantages of its own has none to estimate.
    if (expected.at("advantages").is_null()) continue;
    EXPECT_NEAR(advantages[i][0], expected.at("advantages")[i].get<double>(), 1e-9) << "line " << i + 1;
  }
  const PackingOptions packing = packing_options(run.at("data"));
  check_row_length(trained, packing.row_length, "rollouts.jsonl");
  check_carried_fields(trained, "rollouts.jsonl");
  check_loss_fields(config, trained, "rollouts.jsonl");

  const Scores scores = read_scores(folder + "/expected.jsonl");
  LossStats stats;
  double sum = 0;
  double denominators = 0;
  for (const PackedMicroBatch& packed : pack(lengths, packing)) {
    const MicroBatch m = build_micro_batch(packed, trained, trained_advantages, packing.row_length, {});
    const LossResult loss = micro_batch_loss(config, m, lines, scores);
    sum += loss.sum;
    denominators += loss.denom;
    stats.add(loss.stats);
  }
  const double denominator = step_denominator(config, denominators, stats.active_sequences);
  EXPECT_EQ(denominator, expected.at("objective").at("denominator").get<double>());
  // The stored log-probs are rounded to float32.
  EXPECT_NEAR(sum, expected.at("objective").at("sum").get<double>(), 2e-5 * (1 + denominator));
  const auto metrics = loss_metrics(config, stats, denominator);
  for (const auto& [name, value] : expected.at("metrics").items()) {
    if (name == "optim/grad_norm") continue;
    EXPECT_NEAR(metrics.at(name), value.get<double>(), 2e-6 * (1 + std::abs(value.get<double>()))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenStep,
                         ::testing::Values("llama", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_moe",
                                           "qwen3_5_moe_wrapped", "qwen3_5", "loss_token_mean_dualclip_kl",
                                           "loss_tis_band", "loss_gspo", "loss_gates", "loss_drgrpo",
                                           "loss_advantage_per_token"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace lathe
