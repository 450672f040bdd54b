// Losses that were computed elsewhere: the float64 oracle of tests/goldens and another trainer's float32
// values.
#include <cmath>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/grpo/config.h"

#include "grpo/config_json.h"
#include "grpo/loss_batch.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// Rows [B][T] with segment ids become one list; sequences are (row, segment).
LossBatch read_batch(const Json& json) {
  LossBatch b;
  std::map<std::pair<size_t, int>, int32_t> names;
  const auto& rows = json.at("segment_ids");
  const auto append = [&](const char* key, std::vector<double>& into, size_t r, size_t t) {
    if (json.contains(key)) into.push_back(json_number(json.at(key)[r][t]));
  };
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t t = 0; t < rows[r].size(); ++t) {
      const int segment = rows[r][t].get<int>();
      const auto name = segment == 0 ? -1 : names.try_emplace({r, segment}, names.size()).first->second;
      b.sequence.push_back(name);
      b.mask.push_back(json.at("mask")[r][t].get<uint8_t>());
      append("p", b.live, r, t);
      append("advantage", b.advantage, r, t);
      append("old", b.old, r, t);
      append("ref", b.ref, r, t);
      append("rollout", b.rollout, r, t);
      append("entropy", b.entropy, r, t);
      if (!json.contains("overlong") || name < 0) continue;
      b.overlong.resize(names.size(), 0);
      if (json.at("overlong")[r][t].get<double>() > 0) b.overlong[static_cast<size_t>(name)] = 1;
    }
  }
  return b;
}

std::vector<double> flat(const Json& rows) {
  std::vector<double> values;
  for (const auto& row : rows) {
    for (const auto& value : row) values.push_back(json_number(value));
  }
  return values;
}

void expect_close(double got, double expected, const std::string& what, double tolerance = 1e-9) {
  EXPECT_NEAR(got, expected, tolerance * std::max(1.0, std::abs(expected))) << what;
}

std::vector<Json> lines(const std::string& name) {
  std::ifstream file(std::string(LATHE_GOLDENS) + "/" + name);
  std::vector<Json> out;
  for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line));
  return out;
}

void check_case(const Json& json) {
  const GrpoConfig config = read_config(json.at("config"));
  check_grpo_config(config);
  const LossBatch batch = read_batch(json);
  const LossResult got = batch.run(config);
  const Json& expected = json.at("expected");
  const LossStats& s = got.stats;
  const std::map<std::string, double> values = {{"sum", got.sum},
                                                {"denom", got.denom},
                                                {"loss", got.denom > 0 ? got.sum / got.denom : 0},
                                                {"token_denom", s.token_denom},
                                                {"clip_num", s.clip_num},
                                                {"clip_lower_num", s.clip_lower_num},
                                                {"ppo_kl_num", s.ppo_kl_num},
                                                {"kl_num", s.kl_num},
                                                {"kl_loss_sum", s.kl_loss_sum},
                                                {"entropy_sum", s.entropy_sum},
                                                {"kept", s.kept},
                                                {"sequences", s.sequences},
                                                {"kept_frac", s.kept / std::max(s.sequences, 1.0)},
                                                {"oob_ratio", s.tis_outside / std::max(s.tis_counted, 1.0)}};
  for (const auto& [key, value] : expected.items()) {
    if (values.contains(key)) expect_close(values.at(key), json_number(value), key);
  }
  if (expected.at("ratio_max").is_null()) {
    EXPECT_EQ(s.ratio_max, -INFINITY);
  } else {
    expect_close(s.ratio_max, json_number(expected.at("ratio_max")), "ratio_max");
  }
  const auto mask = flat(expected.at("loss_mask"));
  const auto gradient = flat(expected.at("dsum_dp"));
  ASSERT_EQ(mask.size(), batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(got.loss_mask[i], mask[i]) << "token " << i;
    expect_close(got.dlogprobs[i], gradient[i], fmt::format("gradient {}", i));
  }
}

TEST(LossGolden, EveryCaseOfTheOracle) {
  const auto cases = lines("loss_cases.jsonl");
  ASSERT_EQ(cases.size(), 87U);
  for (const Json& json : cases) {
    SCOPED_TRACE(json.at("id").get<std::string>());
    check_case(json);
  }
}

TEST(LossGolden, AnotherTrainersValues) {
  const auto cases = lines("loss_tunix.jsonl");
  ASSERT_FALSE(cases.empty());
  int number_of_case = 0;
  for (Json json : cases) {
    SCOPED_TRACE(fmt::format("case {}", number_of_case++));
    json["segment_ids"] = json["mask"];
    json["advantage"] = json["mask"];
    for (size_t r = 0; r < json["mask"].size(); ++r) {
      for (size_t t = 0; t < json["mask"][r].size(); ++t) {
        json["segment_ids"][r][t] = 1;
        json["advantage"][r][t] = json["adv"][r];
      }
    }
    for (const char* key : {"old", "ref"}) {
      if (json[key].is_null()) json.erase(key);
    }
    const GrpoConfig config = read_config(json["cfg"]);
    const LossResult got = read_batch(json).run(config);
    constexpr double kFloat32 = 2e-6;
    expect_close(got.sum / got.denom, json["loss"].get<double>(), "loss", kFloat32);
    const auto gradient = flat(json["grad"]);
    for (size_t i = 0; i < gradient.size(); ++i) {
      expect_close(got.dlogprobs[i] / got.denom, gradient[i], fmt::format("gradient {}", i), kFloat32);
    }
    const auto metrics = loss_metrics(config, got.stats, got.denom);
    expect_close(metrics.at("policy/approx_kl"), json["ppo_kl"].get<double>(), "ppo_kl", kFloat32);
    expect_close(metrics.at("policy/clip_frac"), json["clip"].get<double>(), "clip", kFloat32);
    expect_close(metrics.at("policy/ref_kl"), json["kl"].get<double>(), "kl", kFloat32);
  }
}

}  // namespace
}  // namespace lathe
