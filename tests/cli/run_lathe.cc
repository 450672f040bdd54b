#include "cli/run_lathe.h"

#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lathe {
namespace {

std::string read_and_remove(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  std::filesystem::remove(path);
  return text.str();
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Finished run_lathe(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  std::vector<std::string> argv{LATHE_BINARY};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<std::string> env = environment;
  for (char** entry = environ; *entry != nullptr; ++entry) env.emplace_back(*entry);
  const std::string stem =
      (std::filesystem::temp_directory_path() / ("lathe_cli_" + std::to_string(getpid()))).string();
  const std::string out = stem + ".out";
  const std::string err = stem + ".err";

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = 0;
  const int failed =
      posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, pointers(argv).data(), pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  Finished finished;
  if (failed != 0) {
    ADD_FAILURE() << "cannot start " << argv[0];
    return finished;
  }
  int status = 0;
  waitpid(pid, &status, 0);
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  finished.out = read_and_remove(out);
  finished.err = read_and_remove(err);
  return finished;
}

void CommandTest::SetUp() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  before_ = std::filesystem::current_path();
  folder_ = std::filesystem::temp_directory_path() / (std::string("lathe_") + info->test_suite_name() + "_" +
                                                      info->name() + "_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder_);
  std::filesystem::current_path(folder_);
}

void CommandTest::TearDown() {
  std::filesystem::current_path(before_);
  std::filesystem::remove_all(folder_);
}

std::string CommandTest::file(const std::string& name, const std::string& text) {
  std::ofstream(name, std::ios::binary) << text;
  return name;
}

}  // namespace lathe
