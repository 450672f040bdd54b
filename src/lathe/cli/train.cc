#include "lathe/loop/train.h"

#include <CLI/CLI.hpp>

#include "lathe/cli/commands.h"
#include "lathe/cli/stop_signals.h"
#include "lathe/config/load.h"
#include "lathe/config/reference.h"
#include "lathe/core/error.h"
#include "lathe/data/rollouts.h"
#include "lathe/io/files.h"
#include "lathe/mesh/launch.h"

namespace lathe {
namespace {

constexpr const char* kExamples = R"(
Examples:
  lathe train examples/arithmetic/run.yaml
  lathe train run.yaml --set optimizer.learning_rate=1e-6 --set run.dir=runs/second
  lathe train run.yaml --dry-run
  mpirun -np 4 lathe train run.yaml --set mesh.fsdp=4
  lathe train run.yaml --set run.save_every=50    after a stop or a crash, the same command goes on

Ctrl-C, SIGTERM or SIGUSR1: saves a checkpoint, exits 75; a second one kills. docs/checkpoints.md has the rest.
)";

struct TrainArguments {
  std::string run_file;
  std::vector<std::string> sets;
  TrainOptions options;
};

int run_train(const TrainArguments& arguments, CommandContext& context) {
  const Launch launch = launch_from_environment();
  const StopSignals signals(launch.rank == 0);
  TrainOptions options = arguments.options;
  const LoadedConfig loaded = load_train_config(arguments.run_file, arguments.sets, launch.ranks);
  if (!options.gradients_out.empty()) check_output_file("--gradients-out", options.gradients_out);
  if (!options.ledger_out.empty()) check_output_file("--ledger-out", options.ledger_out);
  std::vector<std::string> warnings;  // logged when the model is opened
  check_against_model(loaded, read_model_config(loaded.config.model.path, &warnings));
  for (const auto& [option, path] :
       {std::pair("--gradients-out", options.gradients_out), std::pair("--ledger-out", options.ledger_out)}) {
    if (!file_exists(path) && !file_exists(path + ".partial")) continue;
    std::vector<std::string> inputs = rollout_files(loaded.config.data.rollouts);
    inputs.insert(inputs.end(), {arguments.run_file, loaded.config.model.path});
    check_output_is_no_input(option, path, inputs);
  }
  options.resolved_config = resolved_config_text(loaded);
  options.settings = settings_of(loaded.config);
  options.version = LATHE_VERSION;
  options.process_start_s = context.process_start_s;
  options.started = StopSignals::started;
  options.stop_requested = StopSignals::received;
  const bool speaks = launch.rank == 0;  // for all ranks, which do the same
  Log log(speaks);
  return train(loaded.config, options, log, [speaks, &context](const std::string& line) {
    if (speaks) context.output.line(line);
  });
}

}  // namespace

void add_train_command(CLI::App& app, CommandContext& context) {
  CLI::App& command = *app.add_subcommand("train", "Train a model on rollouts with GRPO");
  auto arguments = std::make_shared<TrainArguments>();  // shared: outlives this function inside the action
  TrainOptions& options = arguments->options;
  command.add_option("RUN.yaml", arguments->run_file, "The run file (docs/config.md)")->required();
  command.add_option("--set", arguments->sets, "section.key=value: goes on top of the run file; repeatable")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  CLI::Option* dry_run = command.add_flag("--dry-run", options.dry_run,
                                          "Read, check and pack everything, print the plan, train nothing");
  command
      .add_option("--gradients-out", options.gradients_out,
                  "Write the gradient of the first optimizer step, before clipping")
      ->type_name("F.safetensors")
      ->excludes(dry_run);
  command
      .add_option("--ledger-out", options.ledger_out,
                  "Write what the first optimizer step exchanged between ranks, and how much")
      ->type_name("F.json")
      ->excludes(dry_run);
  command
      .add_option("--stop-after", options.stop_after,
                  "Save and exit 75 after this many steps, and micro-batches of the next one")
      ->check([](const std::string& text) {
        return std::string(text.empty() ? "'' is not STEP or STEP:MICRO_BATCH" : "");
      })
      ->type_name("STEP[:MICRO_BATCH]");
  command.footer([] { return kExamples + config_key_list(); });
  command.callback([arguments, &context] {
    context.action = [arguments, &context] { return run_train(*arguments, context); };
  });
}

}  // namespace lathe
