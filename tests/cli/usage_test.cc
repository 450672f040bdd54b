// Usage: help, versions, and what the command line itself can get wrong.
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "cli/run_lathe.h"

namespace lathe {
namespace {

const std::vector<std::string> kBuilt{"train", "score", "init",    "inspect",
                                      "bench", "env",   "version", "config-reference"};
const std::vector<std::string> kUnbuilt{"gates", "plan", "serve", "rollout", "render", "diff", "readout"};

class Usage : public CommandTest {};

TEST_F(Usage, EveryCommandHasHelpWithExamples) {
  const Finished top = run_lathe({"--help"});
  EXPECT_EQ(top.code, 0);
  for (const std::string& command : kBuilt) {
    const Finished help = run_lathe({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_NE(help.out.find("\n  lathe " + command), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "") << command;
    EXPECT_NE(top.out.find("\n  " + command + " "), std::string::npos) << command;
  }
  for (const std::string& command : kUnbuilt) {
    const Finished help = run_lathe({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_NE(help.out.find("not built in this version"), std::string::npos) << help.out;
  }
  EXPECT_NE(run_lathe({"train", "--help"}).out.find("\n  optimizer.learning_rate (1e-06): a number >= 0\n"),
            std::string::npos);
}

TEST_F(Usage, CommandsOfLaterVersionsSaySo) {
  for (const std::string& command : kUnbuilt) {
    const Finished done = run_lathe({command, "head", "--json"});
    EXPECT_EQ(done.code, 2) << command;
    EXPECT_EQ(done.err,
              "error: lathe " + command +
                  ": not built in this version\nhint: `lathe --help` lists the commands of this version\n");
  }
}

TEST_F(Usage, FaultsOfTheCommandLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{}, "error: lathe: a command is needed\nhint: see `lathe --help`\n"},
      {{"tran", "x"}, "error: lathe: unknown command 'tran'\nhint: did you mean 'train'?\n"},
      {{"train"}, "error: lathe train: RUN.yaml is required\nhint: see `lathe train --help`\n"},
      {{"train", "run.yaml", "--dryrun"},
       "error: lathe train: The following argument was not expected: --dryrun\nhint: did you mean "
       "'--dry-run'?\n"},
      {{"train", "run.yaml", "--dry-run", "--gradients-out", "x"},
       "error: lathe train: --dry-run excludes --gradients-out\nhint: see `lathe train --help`\n"},
      {{"score", "--rollouts", "a", "--out", "b"},
       "error: lathe score: --model is required\nhint: see `lathe score --help`\n"},
      {{"init", "c.json", "--out", "m", "--seed", "-1"},
       "error: --seed: must be an integer >= 0, got '-1'\n"},
      {{"init", "c.json", "--out", "m", "--dtype", "f64"},
       "error: --dtype: \"f64\" is not one of f32, bf16, f16\n"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Finished done = run_lathe(arguments);
    EXPECT_EQ(done.code, 2) << expected;
    EXPECT_EQ(done.err, expected);
    EXPECT_EQ(done.out, "");
  }
}

TEST_F(Usage, Version) {
  EXPECT_EQ(run_lathe({"version"}).out, "lathe " LATHE_VERSION "\n");
  EXPECT_EQ(run_lathe({"--version"}).out, "lathe " LATHE_VERSION "\n");
  EXPECT_EQ(run_lathe({"version"}).code, 0);
}

TEST_F(Usage, EnvNamesLibrariesAndProcessor) {
  const Finished text = run_lathe({"env"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("version: " LATHE_VERSION "\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("  isa_used: "), std::string::npos) << text.out;

  const auto report = nlohmann::json::parse(run_lathe({"env", "--json"}, {"LATHE_ISA=avx2"}).out);
  for (const char* library :
       {"oneDNN", "fmt", "spdlog", "yaml-cpp", "nlohmann_json", "RapidJSON", "CLI11", "zlib"}) {
    const auto version = report.at("libraries").at(library).get<std::string>();
    EXPECT_NE(version.find('.'), std::string::npos) << library << ": '" << version << "'";
  }
  EXPECT_EQ(report.at("cpu").at("isa_used"), "avx2");
  EXPECT_EQ(report.at("mpi").get<std::string>().rfind("Open MPI", 0), 0U) << report.at("mpi");
  EXPECT_GE(report.at("threads").get<int>(), 1);
  EXPECT_GT(report.at("memory_total_bytes").get<int64_t>(), 0);
  EXPECT_NE(run_lathe({"env"}, {"LATHE_ISA=sse9"})
                .out.find("isa_used: none: LATHE_ISA: unknown instruction set 'sse9'"),
            std::string::npos);
}

TEST_F(Usage, ClosedPipesAndFullDisksOnStdout) {
  const std::string binary = LATHE_BINARY;
  EXPECT_EQ(std::system(("'" + binary + "' config-reference | true").c_str()), 0);
  EXPECT_EQ(WEXITSTATUS(std::system(("'" + binary + "' version >/dev/full 2>err.txt").c_str())), 75);
  EXPECT_EQ(std::system("grep -q '^error: stdout: cannot be written: No space left on device$' err.txt"), 0);
}

}  // namespace
}  // namespace lathe
