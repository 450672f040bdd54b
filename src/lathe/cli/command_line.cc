#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "lathe/cli/commands.h"
#include "lathe/config/problems.h"
#include "lathe/io/files.h"
#include "lathe/loop/rank_errors.h"
#include "lathe/mesh/mpi.h"

namespace lathe {
namespace {

constexpr const char* kDescription =
    "Lathe trains hybrid mixture-of-experts language models with GRPO: rollouts go in, better weights come "
    "out.";
constexpr const char* kFooter = R"(
stdout is the result, stderr the log. Exit codes: 0 done, 1 internal error, 2 usage or configuration,
3 data, 4 checkpoint or model, 5 a gate failed, 75 try again.

Examples:
  lathe init config.json --out model         make a random-weight model
  lathe train run.yaml --dry-run             check a run without training
  lathe train run.yaml                       train; docs/config.md explains run files)";

// Errors on stderr. An error that all ranks have is told once, by rank 0: the others leave it time to end the job. One that
// a single rank has is told by that one, with its number.
class ProblemPrinter {
 public:
  void print(const std::string& what, const std::string& hint) {
    if (launch_.rank != 0 && std::exchange(first_, false)) std::this_thread::sleep_for(kRankZeroFirst);
    const std::string who = launch_.rank != 0 ? fmt::format("rank {}: ", launch_.rank) : "";
    std::fprintf(stderr, "error: %s%s\n", who.c_str(), what.c_str());
    if (!hint.empty()) std::fprintf(stderr, "hint: %s\n", hint.c_str());
  }
  // All ranks have it, and come here.
  void print_agreed(const AgreedError& error) {
    if (launch_.rank == 0) return print(error.what(), error.hint());
    std::this_thread::sleep_for(kAgreedWait);
  }
  // The rank that failed tells why and ends the job; if that takes long, this one does.
  static void wait_for_end() { std::this_thread::sleep_for(kPeerWait); }
  [[nodiscard]] bool several_ranks() const { return launch_.ranks > 1; }

 private:
  static Launch launch() {
    try {
      return launch_from_environment();
    } catch (const Error&) {  // is the problem to print
      return {};
    }
  }
  static constexpr std::chrono::milliseconds kRankZeroFirst{1500};  // mpirun takes one to end the others
  static constexpr std::chrono::milliseconds kAgreedWait{100};
  static constexpr std::chrono::milliseconds kPeerWait{3000};
  const Launch launch_ = launch();
  bool first_ = true;
};

// Names of commands, and of the options of one.
std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::string help_hint(const std::string& command) {
  return fmt::format("see `{} --help`", command);
}

std::string hint_for_extras(const CLI::App& command, const std::string& path) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const std::string& extra : command.remaining()) {
    if (extra.rfind("--", 0) != 0) continue;
    const std::string guess = nearest_name(extra.substr(0, extra.find('=')), names);
    if (!guess.empty()) return fmt::format("did you mean '{}'?", guess);
  }
  return help_hint(path);
}

// Faults of the command line itself, in the form of all other errors.
[[noreturn]] void usage_error(const CLI::App& app, const CLI::ParseError& error) {
  if (app.get_subcommands().empty()) config_error("lathe", error.what(), "see `lathe --help`");
  const CLI::App* command = &app;
  std::string name = "lathe";
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  const bool extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  config_error(name, error.what(), extras ? hint_for_extras(*command, name) : help_hint(name));
}

void refuse_unknown_command(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2) config_error("lathe", "a command is needed", "see `lathe --help`");
  const std::string name = argv[1];
  const std::vector<std::string> names = command_names(app);
  if (name.rfind('-', 0) == 0 || std::find(names.begin(), names.end(), name) != names.end()) return;
  const std::string guess = nearest_name(name, names);
  config_error("lathe", fmt::format("unknown command '{}'", name),
               guess.empty() ? "see `lathe --help`" : fmt::format("did you mean '{}'?", guess));
}

int parse_and_run(int argc, const char* const* argv, double process_start_s) {
  CommandContext context;
  context.process_start_s = process_start_s;
  CLI::App app(kDescription, "lathe");
  app.footer(kFooter);
  app.set_version_flag("--version", "lathe " LATHE_VERSION);
  add_train_command(app, context);
  add_score_command(app, context);
  add_init_command(app, context);
  add_inspect_command(app, context);
  add_bench_command(app, context);
  add_env_command(app, context);
  add_version_command(app, context);
  add_config_reference_command(app, context);
  add_unbuilt_commands(app, context);
  refuse_unknown_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    context.output.text(app.help());
  } catch (const CLI::CallForVersion& e) {
    context.output.line(e.what());
  } catch (const CLI::ParseError& e) {
    usage_error(app, e);
  }
  const int code = context.action ? context.action() : 0;
  context.output.finish();
  return code;
}

}  // namespace

int run_command_line(int argc, const char* const* argv, double process_start_s) {
  ProblemPrinter printer;
  int code = static_cast<int>(ErrorKind::kInternal);
  try {
    return parse_and_run(argc, argv, process_start_s);
  } catch (const ConfigProblems& e) {
    for (const Problem& problem : e.problems()) {
      printer.print(problem.where.empty() ? problem.what : problem.where + ": " + problem.what, problem.hint);
    }
    code = e.exit_code();
  } catch (const AgreedError& e) {
    printer.print_agreed(e);
    code = e.exit_code();
  } catch (const PeerFailure& e) {
    printer.wait_for_end();
    code = e.exit_code();
  } catch (const Error& e) {
    printer.print(e.what(), e.hint());
    code = e.exit_code();
  } catch (const std::bad_alloc&) {
    printer.print("out of memory",
                  "use a smaller model, fewer rows per micro-batch, or a machine with more memory");
  } catch (const std::exception& e) {
    printer.print(fmt::format("internal: {}", e.what()),
                  "this is a bug in lathe: please report it with the output of `lathe env`");
  } catch (...) {
    printer.print("internal: unknown exception",
                  "this is a bug in lathe: please report it with the output of `lathe env`");
  }
  if (printer.several_ranks()) abort_ranks(code);
  return code;
}

void check_output_file(const char* option, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) config_error(option, "'' is not a path", "give the path of a file");
  std::error_code error;
  const fs::path folder = fs::absolute(path).parent_path();
  if (fs::is_directory(path, error))
    config_error(option, fmt::format("'{}' is a folder", path), "give the path of a file");
  if (!fs::is_directory(folder, error)) {
    config_error(option, fmt::format("'{}': there is no folder '{}'", path, folder.string()),
                 "make it first");
  }
  if (access(folder.c_str(), W_OK) != 0) {
    config_error(option, fmt::format("'{}': the folder '{}' cannot be written", path, folder.string()),
                 "choose another folder");
  }
}

void check_output_is_no_input(const char* option, const std::string& path,
                              const std::vector<std::string>& inputs) {
  if (!file_exists(path) && !file_exists(path + ".partial")) return;
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    if (!folder_exists(input)) {
      files.push_back(input);
      continue;
    }
    for (const std::string& name : list_files(input))
      files.push_back((std::filesystem::path(input) / name).string());
  }
  for (const std::string& input : files) {
    // The writer's own file, beside the output until it is whole, must not be an input either.
    if (!same_file(path, input) && !same_file(path + ".partial", input)) continue;
    config_error(option, fmt::format("'{}' would replace the input '{}'", path, input),
                 "choose another path");
  }
}

}  // namespace lathe
