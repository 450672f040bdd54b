#include <array>
#include <utility>

#include <CLI/CLI.hpp>

#include "lathe/cli/commands.h"
#include "lathe/core/error.h"

namespace lathe {

void add_unbuilt_commands(CLI::App& app, CommandContext& context) {
  constexpr std::array<std::pair<const char*, const char*>, 7> kCommands{
      {{"gates", "The numerics gates alone"},
       {"plan", "Memory, FLOPs and bytes of a run on any mesh"},
       {"serve", "The trainer as a worker for an orchestrator"},
       {"rollout", "Sample from a small model"},
       {"render", "Manifests from a run file"},
       {"diff", "Differences of manifests and configurations"},
       {"readout", "Rulers read from logs"}}};
  for (const auto& [name, what] : kCommands) {
    CLI::App& command = *app.add_subcommand(name, fmt::format("{} (not built in this version)", what));
    command.group("Commands that are not built in this version");
    command.allow_extras();
    command.callback([&context, name = name] {
      context.action = [name]() -> int {
        config_error(fmt::format("lathe {}", name), "not built in this version",
                     "`lathe --help` lists the commands of this version");
      };
    });
  }
}

}  // namespace lathe
