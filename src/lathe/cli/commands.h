// The subcommands of the binary, one source file each. add_X_command() declares options and help; when the command is
// the one on the command line, parsing stores what to do in `context.action`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lathe/cli/output.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace lathe {

struct CommandContext {
  double process_start_s = 0;   // of steady_seconds()
  Output output;                // stdout
  std::function<int()> action;  // returns the exit code; errors are thrown
};

void add_train_command(CLI::App& app, CommandContext& context);
void add_score_command(CLI::App& app, CommandContext& context);
void add_init_command(CLI::App& app, CommandContext& context);
void add_inspect_command(CLI::App& app, CommandContext& context);
void add_bench_command(CLI::App& app, CommandContext& context);
void add_env_command(CLI::App& app, CommandContext& context);
void add_version_command(CLI::App& app, CommandContext& context);
void add_config_reference_command(CLI::App& app, CommandContext& context);
// Commands of later versions: known by name, with help, and an error that says they are not built.
void add_unbuilt_commands(CLI::App& app, CommandContext& context);

// Parses, runs, reports errors on stderr as "error: ..." and "hint: ...", and returns the exit code. One of several ranks
// reports by number, and ends all of them.
[[nodiscard]] int run_command_line(int argc, const char* const* argv, double process_start_s);

// A config error if `path` (given as `option`) cannot become a file: its folder is missing or not writable.
void check_output_file(const char* option, const std::string& path);
// A config error if writing `path` (given as `option`) would replace one of the `inputs`, or a file of the folders among
// them. Links and other spellings of a path do not hide it.
void check_output_is_no_input(const char* option, const std::string& path,
                              const std::vector<std::string>& inputs);

}  // namespace lathe
