// Runs of small models on rollouts that a test makes line by line, for the faults that users of other trainers met
// (docs/field_faults.md).
#pragma once

#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "support/golden_tensors.h"

#include "cli/golden_run.h"

namespace lathe {

class FieldRun : public GoldenRun {
 protected:
  using Json = nlohmann::json;
  using Ids = std::vector<int>;
  using Sets = std::vector<std::string>;  // section.key=value

  // Token ids that look random; the same for the same seed.
  static Ids ids(int count, unsigned seed, int vocab = 90) {
    Ids out;
    unsigned state = seed * 2654435761U + 1;
    for (int i = 0; i < count; ++i) {
      state = state * 1664525U + 1013904223U;
      out.push_back(1 + static_cast<int>(state >> 8U) % vocab);
    }
    return out;
  }
  static Json line(const Ids& prompt, const Ids& completion, const Json& more = Json::object()) {
    Json json{{"prompt_ids", prompt}, {"completion_ids", completion}};
    json.update(more);
    return json;
  }
  static void write_lines(const std::string& name, const std::vector<Json>& lines) {
    std::ofstream out(name);
    for (const Json& json : lines) out << json << '\n';
  }
  static std::vector<Json> read_lines(const std::string& name) {
    std::vector<Json> lines;
    std::ifstream in(name);
    for (std::string text; std::getline(in, text);) lines.push_back(Json::parse(text));
    return lines;
  }

  // Scores of `lines` with these settings.
  static std::vector<Json> scores(const std::vector<Json>& lines, const Sets& sets = {},
                                  const std::string& model = "model") {
    write_lines("to_score.jsonl", lines);
    std::vector<std::string> arguments{"score",      "--model",        model,
                                       "--rollouts", "to_score.jsonl", "--out",
                                       "out.jsonl",  "--set",          "model.compute_dtype=f32"};
    for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
    const Finished done = run_lathe(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
    return read_lines("out.jsonl");
  }

  // Trains on `lines`; metrics by step. Checkpoint and gradients: run/, gradients.safetensors.
  static std::vector<Json> run(const std::vector<Json>& lines, const Sets& sets = {}) {
    write_lines("train.jsonl", lines);
    return run_on("train.jsonl", sets);
  }
  static std::vector<Json> run_on(const std::string& rollouts, const Sets& sets) {
    std::filesystem::remove_all("run");
    file("field.yaml",
         "model: {path: model, compute_dtype: f32}\n"
         "data: {row_length: 256, rollouts: " +
             rollouts +
             "}\n"
             "run: {dir: run, steps: 1, threads: 1}\n");
    std::vector<std::string> arguments{"train", "field.yaml", "--gradients-out", "gradients.safetensors"};
    for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
    const Finished done = run_lathe(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
    log_ = done.err;
    return read_lines("run/metrics.jsonl");
  }
  static std::map<std::string, test::HostArray> gradients() {
    return test::read_golden_tensors("gradients.safetensors");
  }
  // Largest difference of a tensor relative to that tensor's norm.
  static double relative_gap(const std::map<std::string, test::HostArray>& a,
                             const std::map<std::string, test::HostArray>& b) {
    double worst = a.size() == b.size() && !a.empty() ? 0 : INFINITY;
    for (const auto& [name, values] : a) {
      double gap = 0;
      double size = 0;
      for (int64_t i = 0; i < values.size(); ++i) {
        gap += std::pow(values[i] - b.at(name)[i], 2);
        size += std::pow(values[i], 2);
      }
      if (size > 0) worst = std::max(worst, std::sqrt(gap / size));
    }
    return worst;
  }
  static double largest_gap(const Json& a, const Json& b) {
    double worst = a.size() == b.size() ? 0 : INFINITY;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
      worst = std::max(worst, std::abs(a[i].get<double>() - b[i].get<double>()));
    }
    return worst;
  }

  static inline std::string log_;  // of the last run
};

}  // namespace lathe
