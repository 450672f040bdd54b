// Runs the `lathe` binary on every case of tests/goldens and compares with the oracle: log-probs and
// entropies of every token, loss, gradient norm and metrics of the first step, and its gradient, tensor by
// tensor. Where the tolerances come from: docs/numerics.md. LATHE_RANKS and LATHE_MESH ("context=2
// expert=2") run it on a mesh.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "lathe/io/safetensors.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kTokenAbs = 2e-4;       // log-prob and entropy of a token
constexpr double kGradientRel = 1e-3;    // L2 error of a tensor over its norm
constexpr double kGradientFloor = 1e-6;  // plus this much of the norm of all gradients
constexpr double kCosineGap = 1e-5;      // 1 - cosine, of tensors well above the floor
constexpr double kLossRel = 1e-4;
constexpr double kLossAbs = 1e-5;
constexpr double kMetricRel = 1e-3;
constexpr double kMetricAbs = 1e-5;

struct Variant {
  std::string name;
  std::vector<std::string> score_settings;
  std::vector<std::string> train_settings;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {"cpu", {}, {"remat.policy=none"}},
      {"remat", {"run.threads=1"}, {"remat.policy=full", "run.threads=1"}},
      {"ref", {}, {"run.device=ref"}},
      // Packing must not change a value beyond rounding.
      {"long_rows", {}, {"data.row_length=320", "data.rows_per_micro_batch=3", "data.segment_alignment=1"}},
      {"padded_start", {}, {"data.row_length=512", "data.pad_position=start", "data.pad_alignment=64"}},
  };
  return all;
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(LATHE_GOLDENS))
    if (fs::exists(entry.path() / "run.yaml")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Rollout lines may hold the literals NaN and Infinity, which are not JSON; none of the fixtures has them in
// a string.
std::string replace_nonfinite_literals(std::string line) {
  for (const std::string word : {"-Infinity", "Infinity", "NaN"})
    for (size_t at = line.find(word); at != std::string::npos; at = line.find(word, at))
      line.replace(at, word.size(), "null");
  return line;
}

std::vector<json> read_json_lines(const fs::path& path) {
  std::vector<json> lines;
  std::istringstream text(read_text(path));
  for (std::string line; std::getline(text, line);)
    if (!line.empty()) lines.push_back(json::parse(replace_nonfinite_literals(line)));
  return lines;
}

double number_or_nan(const json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// `path:` of the section model.
fs::path model_of(const fs::path& folder) {
  std::istringstream text(read_text(folder / "run.yaml"));
  std::string section;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line[0] != ' ') section = line;
    const size_t at = line.find("path: ");
    if (section == "model:" && at != std::string::npos) return folder / line.substr(at + 6);
  }
  ADD_FAILURE() << folder << "/run.yaml has no model.path";
  return {};
}

std::vector<double> values_of(const SafetensorsFile& file, const TensorInfo& info) {
  EXPECT_EQ(info.dtype, "F32");
  const auto* data = reinterpret_cast<const float*>(file.bytes(info));
  return {data, data + info.elements()};
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class GoldenTest : public testing::TestWithParam<std::tuple<std::string, size_t>> {
 protected:
  void SetUp() override {
    folder_ = fs::path(LATHE_GOLDENS) / std::get<0>(GetParam());
    std::string pattern = fs::temp_directory_path() / "lathe_golden.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    scratch_ = pattern;
  }
  void TearDown() override { fs::remove_all(scratch_); }

  [[nodiscard]] const Variant& variant() const { return variants()[std::get<1>(GetParam())]; }

  // Exit code 0 or the end of the log as a failure.
  void run_lathe(const std::string& arguments, const std::vector<std::string>& settings) const {
    std::string command = std::string("'") + LATHE_BINARY + "' " + arguments;
    const char* ranks = std::getenv("LATHE_RANKS");
    const char* mesh = std::getenv("LATHE_MESH");
    if (ranks != nullptr && mesh != nullptr) {
      command = std::string("'" LATHE_SOURCE_DIR "/scripts/run_ranks.sh' ") + ranks + " " + command;
      std::istringstream axes(mesh);
      for (std::string axis; axes >> axis;) command += " --set 'mesh." + axis + "'";
    }
    for (const std::string& setting : settings) command += " --set '" + setting + "'";
    const fs::path log = scratch_ / "log.txt";
    command += " >'" + log.string() + "' 2>&1 </dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << command << "\n" << read_text(log);
  }

  fs::path folder_;
  fs::path scratch_;
};

TEST_P(GoldenTest, ScoresLikeTheOracle) {
  const fs::path rollouts = folder_ / "rollouts.jsonl";
  const fs::path out = scratch_ / "scored.jsonl";
  std::vector<std::string> settings = variant().score_settings;
  settings.insert(settings.end(), {"model.compute_dtype=f32", "model.weight_dtype=f32"});
  ASSERT_NO_FATAL_FAILURE(run_lathe("score --model '" + model_of(folder_).string() + "' --rollouts '" +
                                        rollouts.string() + "' --out '" + out.string() + "'",
                                    settings));
  const std::vector<json> sent = read_json_lines(rollouts);
  const std::vector<json> expected = read_json_lines(folder_ / "expected.jsonl");
  const std::vector<json> got = read_json_lines(out);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t line = 0; line < got.size(); ++line) {
    SCOPED_TRACE("line " + std::to_string(line + 1));
    ASSERT_EQ(got[line].value("completion_ids", json()), sent[line]["completion_ids"]);
    for (const char* key : {"logprobs", "entropy"}) {
      ASSERT_TRUE(got[line].contains(key)) << key;
      ASSERT_EQ(got[line][key].size(), expected[line][key].size()) << key;
      for (size_t token = 0; token < expected[line][key].size(); ++token)
        ASSERT_NEAR(number_or_nan(got[line][key][token]), number_or_nan(expected[line][key][token]),
                    kTokenAbs)
            << key << " of token " << token;
    }
  }
}

void compare_gradients(const fs::path& expected_path, const fs::path& got_path) {
  const SafetensorsFile expected(expected_path);
  const SafetensorsFile got(got_path);
  double total = 0;
  for (const auto& [name, info] : expected.tensors()) {
    const std::vector<double> values = values_of(expected, info);
    total += dot(values, values);
    EXPECT_TRUE(got.tensors().contains(name)) << "no gradient of " << name;
  }
  const double floor = kGradientFloor * std::sqrt(total);
  for (const auto& [name, info] : got.tensors()) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(expected.tensors().contains(name)) << "a gradient that the oracle does not have";
    const TensorInfo& expected_info = expected.tensors().at(name);
    ASSERT_EQ(info.shape, expected_info.shape);
    const std::vector<double> want = values_of(expected, expected_info);
    const std::vector<double> have = values_of(got, info);
    std::vector<double> gap(want.size());
    for (size_t i = 0; i < want.size(); ++i) gap[i] = have[i] - want[i];
    const double norm = std::sqrt(dot(want, want));
    EXPECT_LE(std::sqrt(dot(gap, gap)), kGradientRel * norm + floor) << "norm " << norm;
    if (norm > 100 * floor) {
      EXPECT_LE(1 - dot(want, have) / (norm * std::sqrt(dot(have, have))), kCosineGap);
    }
  }
}

TEST_P(GoldenTest, StepLikeTheOracle) {
  const fs::path run_folder = scratch_ / "run";
  const fs::path gradients = scratch_ / "gradients.safetensors";
  std::vector<std::string> settings = variant().train_settings;
  settings.insert(settings.end(), {"run.dir=" + run_folder.string(), "run.steps=1"});
  ASSERT_NO_FATAL_FAILURE(run_lathe(
      "train '" + (folder_ / "run.yaml").string() + "' --gradients-out '" + gradients.string() + "'",
      settings));
  compare_gradients(folder_ / "expected.safetensors", gradients);

  const json expected = json::parse(read_text(folder_ / "expected.json"));
  json metrics;
  for (const json& line : read_json_lines(run_folder / "metrics.jsonl"))
    if (line.contains("policy/loss")) metrics = line;
  ASSERT_TRUE(metrics.is_object()) << "metrics.jsonl has no step";
  for (const auto& [name, value] : expected["metrics"].items()) {
    ASSERT_TRUE(metrics.contains(name)) << name;
    const double want = value.get<double>();
    double tolerance = kMetricRel * std::abs(want) + kMetricAbs;
    if (name == "policy/loss") tolerance = kLossRel * std::abs(want) + kLossAbs;
    if (name == "optim/grad_norm") tolerance = kLossRel * std::abs(want);
    EXPECT_NEAR(number_or_nan(metrics[name]), want, tolerance) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest,
                         testing::Combine(testing::ValuesIn(case_names()),
                                          testing::Range<size_t>(0, variants().size())),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + variants()[std::get<1>(test.param)].name;
                         });

}  // namespace
}  // namespace lathe
