#include "lathe/loop/score.h"

#include <filesystem>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "lathe/cli/commands.h"
#include "lathe/config/load.h"
#include "lathe/core/error.h"
#include "lathe/mesh/launch.h"

namespace lathe {
namespace {

constexpr const char* kFooter = R"(
Keys of --set: those of the sections model, data, head, mesh, moe and gdn and of run.threads and run.device that
docs/config.md marks with "s".

Examples:
  lathe score --model model --rollouts rollouts.jsonl --out scored.jsonl
  lathe score --model model --rollouts rollouts.jsonl --out scored.jsonl --set model.compute_dtype=f32 --json)";

struct ScoreArguments {
  std::string model;
  std::string rollouts;
  std::string out;
  std::vector<std::string> sets;
  bool json = false;
};

int run_score(const ScoreArguments& arguments, CommandContext& context) {
  const Launch launch = launch_from_environment();
  LoadedConfig loaded = load_score_config(arguments.sets, launch.ranks);
  if (arguments.model.empty()) config_error("--model", "'' is not a path", "give a model folder");
  loaded.config.model.path = std::filesystem::absolute(arguments.model).lexically_normal().string();
  check_output_file("--out", arguments.out);
  check_output_is_no_input("--out", arguments.out, {arguments.rollouts, loaded.config.model.path});
  std::vector<std::string> warnings;  // logged when the model is opened
  check_against_model(loaded, read_model_config(loaded.config.model.path, &warnings));
  Log log(launch.rank == 0);
  const ScoreSummary summary = score(loaded.config, arguments.rollouts, arguments.out, log);
  if (launch.rank != 0) return 0;
  if (arguments.json) {
    nlohmann::ordered_json json;
    json["trajectories"] = summary.trajectories;
    json["bad_lines"] = summary.bad_lines;
    json["tokens"] = summary.tokens;
    json["scored_tokens"] = summary.scored_tokens;
    json["seconds"] = summary.seconds;
    json["tokens_per_s"] = summary.tokens_per_s;
    json["mean_logprob"] = summary.mean_logprob;
    json["mean_logprob_rewarded"] = summary.mean_logprob_rewarded;
    json["mean_logprob_unrewarded"] = summary.mean_logprob_unrewarded;
    context.output.line(json.dump(2));  // NaN becomes null
    return 0;
  }
  context.output.line(fmt::format(
      "{} trajectories, {} tokens, {} of them scored, in {:.2f} s ({:.0f} tokens/s)", summary.trajectories,
      summary.tokens, summary.scored_tokens, summary.seconds, summary.tokens_per_s));
  context.output.line(fmt::format("mean log-prob {:.6f} (reward > 0: {:.6f}, others: {:.6f})",
                                  summary.mean_logprob, summary.mean_logprob_rewarded,
                                  summary.mean_logprob_unrewarded));
  if (summary.bad_lines > 0) {
    context.output.line(fmt::format("{} bad line(s) are copied without log-probs", summary.bad_lines));
  }
  context.output.line(fmt::format("written: {}", arguments.out));
  return 0;
}

}  // namespace

void add_score_command(CLI::App& app, CommandContext& context) {
  CLI::App& command =
      *app.add_subcommand("score", "Add a model's log-probs and entropies to recorded rollouts");
  auto arguments = std::make_shared<ScoreArguments>();  // shared: outlives this function inside the action
  command.add_option("--model", arguments->model, "Model folder in Hugging Face layout")
      ->required()
      ->type_name("DIR");
  command.add_option("--rollouts", arguments->rollouts, "Rollout file (.jsonl or .jsonl.gz)")
      ->required()
      ->type_name("IN.jsonl");
  command.add_option("--out", arguments->out, "Every line of IN.jsonl with logprobs and entropy added")
      ->required()
      ->type_name("OUT.jsonl");
  command.add_option("--set", arguments->sets, "section.key=value; repeatable")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  command.add_flag("--json", arguments->json, "Print the summary as JSON");
  command.footer(kFooter);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] { return run_score(*arguments, context); };
  });
}

}  // namespace lathe
