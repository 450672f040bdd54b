#include "lathe/config/check.h"

#include <algorithm>

#include "lathe/config/option_table.h"
#include "lathe/data/packing.h"
#include "lathe/grpo/config.h"
#include "lathe/loop/setup.h"

namespace lathe {
namespace {

bool is_built(const Option& option, const std::string& value) {
  return option.built.empty() ||
         std::find(option.built.begin(), option.built.end(), value) != option.built.end();
}

std::string value_of(const std::string& key, const RunConfig& config) {
  const Option* option = find_option(key);
  LATHE_CHECK(option != nullptr, "a requirement names {}, which is no option", key);
  return option->text(config);
}

// Why a value that is not the default cannot do what it says; "" if it can.
std::string unmet_requirements(const Option& option, const RunConfig& config,
                               const std::set<std::string>& refused) {
  const std::string value = option.text(config);
  std::vector<std::string> reasons;
  for (const Requirement& need : option.needs) {
    if (need.met(config) || refused.count(need.key) > 0) continue;
    reasons.push_back(
        fmt::format("it needs {} {} (is {})", need.key, need.relation, value_of(need.key, config)));
  }
  if (!reasons.empty()) reasons.front() = "has no effect: " + reasons.front();
  if (!is_built(option, value)) {
    reasons.push_back(fmt::format("not built in this version (built: {})", fmt::join(option.built, ", ")));
  }
  return fmt::format("{}", fmt::join(reasons, "; "));
}

// Adds the keys it refuses to `refused`.
void check_effects(const LoadedConfig& loaded, std::set<std::string>* refused, ProblemList* problems) {
  for (const Option& option : option_table()) {
    const auto origin = loaded.origins.find(option.key());
    const std::string value = option.text(loaded.config);
    if (origin == loaded.origins.end() || value == option.text(RunConfig{})) continue;
    const std::string reasons = unmet_requirements(option, loaded.config, *refused);
    if (!reasons.empty()) {
      refused->insert(option.key());
      problems->add(origin->second, fmt::format("{} = {}: {}", option.key(), value, reasons),
                    fmt::format("remove it, or leave it at {}", default_text(option)));
    }
  }
}

void check_packing(const RunConfig& config, ProblemList* problems) {
  const DataSection& data = config.data;
  if (data.row_length == 0) return;
  problems->collect("", [&] { check_packing_options(packing_options(config)); });
  constexpr int64_t kMostTokens = (int64_t{1} << 31) - 1;
  if (data.row_length > kMostTokens / data.rows_per_micro_batch) {
    problems->add("data.rows_per_micro_batch",
                  fmt::format("{} rows of {} tokens are more than a micro-batch can hold ({} tokens)",
                              data.rows_per_micro_batch, data.row_length, kMostTokens),
                  "use fewer rows, or shorter ones");
  }
}

}  // namespace

void check_required(const LoadedConfig& loaded, const std::string& run_file, ProblemList* problems) {
  for (const Option& option : option_table()) {
    if (option.required && loaded.origins.count(option.key()) == 0) {
      problems->add(run_file, fmt::format("required option '{}' is missing", option.key()),
                    fmt::format("set it: {}", option.help));
    }
  }
  const auto row_length = loaded.origins.find("data.row_length");
  if (row_length != loaded.origins.end() && loaded.config.data.row_length == 0) {
    problems->add(row_length->second, "data.row_length must be > 0 in lathe train, got 0",
                  "set it to the tokens of a packed row, at least those of the longest trajectory");
  }
}

void check_values(const LoadedConfig& loaded, const std::set<std::string>& refused, ProblemList* problems) {
  std::set<std::string> bad = refused;
  check_effects(loaded, &bad, problems);
  // Combinations are judged only where every value of the section stands.
  const auto stands = [&](const std::string& section) {
    return std::none_of(bad.begin(), bad.end(),
                        [&](const std::string& key) { return key.rfind(section, 0) == 0; });
  };
  if (stands("data.")) check_packing(loaded.config, problems);
  if (stands("grpo.")) {
    problems->collect("", [&] { check_grpo_config(loaded.config.grpo); });
  }
}

void check_against_model(const LoadedConfig& loaded, const ModelConfig& model) {
  ProblemList problems;
  for (const Option& option : option_table()) {
    const auto origin = loaded.origins.find(option.key());
    const std::string value = option.text(loaded.config);
    if (origin == loaded.origins.end() || value == option.text(RunConfig{})) continue;
    if (!option.in_model || option.in_model(model)) continue;
    problems.add(origin->second,
                 fmt::format("{} = {}: has no effect: it needs {}, and this model ({}) has none",
                             option.key(), value, option.model_part, model.family),
                 fmt::format("remove it, or leave it at {}", default_text(option)));
  }
  problems.throw_if_any();
}

}  // namespace lathe
