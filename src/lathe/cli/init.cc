
#include <charconv>

#include <CLI/CLI.hpp>

#include "lathe/cli/commands.h"
#include "lathe/core/error.h"
#include "lathe/core/log.h"
#include "lathe/model/checkpoint.h"

namespace lathe {
namespace {

constexpr const char* kFooter = R"(
Examples:
  lathe init config.json --out model
  lathe init config.json --out model --seed 7 --dtype bf16)";

constexpr int64_t kShardBytes = int64_t{4} << 30;

struct InitArguments {
  std::string config;
  std::string out;
  std::string seed = "0";
  std::string dtype = "f32";
};

// As in run files; CLI11 would take -1 for a large number.
uint64_t parse_seed(const std::string& text) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    config_error("--seed", fmt::format("must be an integer >= 0, got '{}'", text));
  }
  return seed;
}

int run_init(const InitArguments& arguments, CommandContext& context) {
  std::vector<std::string> warnings;
  Log log;
  {
    const Activity activity = log.activity("making " + arguments.out, 0, "tensors");
    initialize_model(arguments.config, arguments.out, parse_seed(arguments.seed), arguments.dtype, &warnings,
                     kShardBytes, [&activity] { activity.advance(); });
  }
  for (const std::string& warning : warnings) log.warning("{}", warning);
  context.output.line(fmt::format("written: {}", arguments.out));
  return 0;
}

}  // namespace

void add_init_command(CLI::App& app, CommandContext& context) {
  CLI::App& command = *app.add_subcommand("init", "Make a random-weight model in Hugging Face layout");
  auto arguments = std::make_shared<InitArguments>();  // shared: outlives this function inside the action
  command.add_option("CONFIG.json", arguments->config, "The model's config.json")->required();
  command.add_option("--out", arguments->out, "Folder to make")->required()->type_name("DIR");
  command.add_option("--seed", arguments->seed, "Seed of the weights (0)")->type_name("N");
  command.add_option("--dtype", arguments->dtype, "Type of the weights: f32 (default), bf16 or f16")
      ->type_name("TYPE");
  command.footer(kFooter);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] { return run_init(*arguments, context); };
  });
}

}  // namespace lathe
