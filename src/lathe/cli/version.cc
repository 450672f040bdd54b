#include <CLI/CLI.hpp>

#include "lathe/cli/commands.h"
#include "lathe/config/reference.h"

namespace lathe {

void add_version_command(CLI::App& app, CommandContext& context) {
  CLI::App& command = *app.add_subcommand("version", "Print the version");
  command.footer("\nExample:\n  lathe version");
  command.callback([&context] {
    context.action = [&context] {
      context.output.line("lathe " LATHE_VERSION);
      return 0;
    };
  });
}

void add_config_reference_command(CLI::App& app, CommandContext& context) {
  CLI::App& command =
      *app.add_subcommand("config-reference", "Print docs/config.md: every option of run files");
  command.footer("\nExample:\n  lathe config-reference > docs/config.md");
  command.callback([&context] {
    context.action = [&context] {
      context.output.text(config_reference());
      return 0;
    };
  });
}

}  // namespace lathe
