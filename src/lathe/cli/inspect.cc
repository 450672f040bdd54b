#include "lathe/data/inspect.h"

#include <filesystem>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "lathe/cli/commands.h"
#include "lathe/core/error.h"
#include "lathe/core/log.h"
#include "lathe/model/inspect.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFooter = R"(
PATH is a model folder or checkpoint in Hugging Face layout, a .safetensors file, or a rollout file (.jsonl, .jsonl.gz).
Problems are part of the report; with any, the exit code is that of an error: 3 for rollouts, 4 for models.

Examples:
  lathe inspect model
  lathe inspect rollouts.jsonl --json)";

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void list_lines(const std::string& label, const std::vector<std::string>& lines, Output& output) {
  for (const std::string& line : lines) output.line(fmt::format("{}: {}", label, line));
}

Json json_of(const ModelReport& report) {
  Json tensors = Json::array();
  for (const InspectedTensor& tensor : report.tensors) {
    tensors.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
  }
  Json json;
  json["family"] = report.family;
  json["parameters"] = report.parameters;
  json["active_parameters"] = report.active_parameters;
  json["tensors"] = std::move(tensors);
  json["unused"] = report.unused;
  json["missing"] = report.missing;
  json["problems"] = report.problems;
  json["warnings"] = report.warnings;
  return json;
}

void print(const ModelReport& report, Output& output) {
  output.line(fmt::format("family: {}", report.family.empty() ? "not known" : report.family));
  output.line(fmt::format("parameters: {}", report.parameters));
  if (!report.family.empty()) output.line(fmt::format("active per token: {}", report.active_parameters));
  output.line(fmt::format("tensors: {} ({} not read, {} missing)", report.tensors.size(),
                          report.unused.size(), report.missing.size()));
  list_lines("problem", report.problems, output);
  list_lines("warning", report.warnings, output);
  list_lines("missing", report.missing, output);
  list_lines("not read", report.unused, output);
  for (const InspectedTensor& tensor : report.tensors) {
    output.line(fmt::format("  {} {} {}", tensor.name, tensor.dtype, shape_text(tensor.shape)));
  }
}

Json json_of(const Spread& spread) {
  if (spread.count == 0)
    return {{"count", 0}, {"min", nullptr}, {"mean", nullptr}, {"max", nullptr}, {"std", nullptr}};
  return {{"count", spread.count},
          {"min", spread.min},
          {"mean", spread.mean},
          {"max", spread.max},
          {"std", spread.std}};
}

Json json_of(const RolloutReport& report) {
  Json parts = Json::object();
  for (const auto& [name, spread] : report.reward_parts) parts[name] = json_of(spread);
  Json json;
  json["trajectories"] = report.trajectories;
  json["groups"] = report.groups;
  json["tokens"] = report.tokens;
  json["scored_tokens"] = report.scored_tokens;
  json["lengths"] = json_of(report.lengths);
  json["prompt_lengths"] = json_of(report.prompt_lengths);
  json["completion_lengths"] = json_of(report.completion_lengths);
  json["reward"] = json_of(report.reward);
  json["reward_parts"] = std::move(parts);
  json["status"] = report.status;
  json["env"] = report.env;
  json["with_advantage"] = report.with_advantage;
  json["with_rollout_logprobs"] = report.with_rollout_logprobs;
  json["with_old_logprobs"] = report.with_old_logprobs;
  json["with_ref_logprobs"] = report.with_ref_logprobs;
  json["with_routed_experts"] = report.with_routed_experts;
  json["problems"] = report.problems;
  json["warnings"] = report.warnings;
  return json;
}

std::string text_of(const Spread& spread) {
  if (spread.count == 0) return "none";
  return fmt::format("{} (min {:.6g}, mean {:.6g}, max {:.6g}, std {:.6g})", spread.count, spread.min,
                     spread.mean, spread.max, spread.std);
}

void print(const RolloutReport& report, Output& output) {
  output.line(fmt::format("trajectories: {} in {} groups", report.trajectories, report.groups));
  output.line(fmt::format("tokens: {}, {} of them scored", report.tokens, report.scored_tokens));
  output.line("lengths: " + text_of(report.lengths));
  output.line("prompt lengths: " + text_of(report.prompt_lengths));
  output.line("completion lengths: " + text_of(report.completion_lengths));
  output.line("rewards: " + text_of(report.reward));
  for (const auto& [name, spread] : report.reward_parts) {
    output.line(fmt::format("reward part {}: {}", name, text_of(spread)));
  }
  for (const auto& [name, count] : report.status) output.line(fmt::format("status {}: {}", name, count));
  for (const auto& [name, count] : report.env) output.line(fmt::format("env {}: {}", name, count));
  output.line(fmt::format(
      "with advantage {}, rollout_logprobs {}, old_logprobs {}, ref_logprobs {}, routed_experts {}",
      report.with_advantage, report.with_rollout_logprobs, report.with_old_logprobs, report.with_ref_logprobs,
      report.with_routed_experts));
  list_lines("problem", report.problems, output);
  list_lines("warning", report.warnings, output);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Rollouts unless it looks like a model: of what is not there, the name decides which error is given.
bool is_rollout_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error) || ends_with(path, ".safetensors")) return false;
  return std::filesystem::exists(path, error) || ends_with(path, ".jsonl") || ends_with(path, ".jsonl.gz");
}

// The report on stdout, and an error when lathe would refuse what it is about.
template <typename Report>
void show(const Report& report, bool json, Output& output) {
  if (json) {
    // File names and keys may hold bytes that are not UTF-8.
    output.line(json_of(report).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print(report, output);
  }
}

RolloutReport read_rollouts_shown(const std::string& path) {
  Log log;
  const Activity reading = log.activity("reading " + path, 0, "lines");
  return inspect_rollouts(path, 0, [&reading] { reading.advance(); });
}

int inspect(const std::string& path, bool json, Output& output) {
  constexpr const char* kHint = "the report on stdout lists every problem";
  if (is_rollout_file(path)) {
    const RolloutReport report = read_rollouts_shown(path);
    show(report, json, output);
    if (report.problems.empty()) return 0;
    data_error("", report.problems.front(), kHint);
  }
  const ModelReport report = inspect_model(path);
  show(report, json, output);
  if (!report.problems.empty()) model_error("", report.problems.front(), kHint);
  if (!report.missing.empty()) {
    model_error(
        path,
        fmt::format("{} tensors are missing, the first is {}", report.missing.size(), report.missing.front()),
        kHint);
  }
  return 0;
}

}  // namespace

void add_inspect_command(CLI::App& app, CommandContext& context) {
  struct Arguments {
    std::string path;
    bool json = false;
  };
  CLI::App& command = *app.add_subcommand("inspect", "Show what a model, safetensors or rollout file holds");
  auto arguments = std::make_shared<Arguments>();  // shared: outlives this function inside the action
  command.add_option("PATH", arguments->path, "What to look into")->required();
  command.add_flag("--json", arguments->json, "Print JSON");
  command.footer(kFooter);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] {
      return inspect(arguments->path, arguments->json, context.output);
    };
  });
}

}  // namespace lathe
