#include "cli/run_lathe.h"

#include <csignal>
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

RunningLathe::RunningLathe(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment) {
  static int count = 0;
  std::vector<std::string> argv{LATHE_BINARY};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<std::string> env = environment;
  for (char** entry = environ; *entry != nullptr; ++entry) env.emplace_back(*entry);
  stem_ = (std::filesystem::temp_directory_path() /
           ("lathe_cli_" + std::to_string(getpid()) + "_" + std::to_string(count++)))
              .string();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  for (const auto& [descriptor, ending] : {std::pair(1, ".out"), std::pair(2, ".err")}) {
    posix_spawn_file_actions_addopen(&actions, descriptor, (stem_ + ending).c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
  }
  const int failed =
      posix_spawn(&pid_, argv[0].c_str(), &actions, nullptr, pointers(argv).data(), pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  ended_ = failed != 0;
  if (failed != 0) ADD_FAILURE() << "cannot start " << argv[0];
}

RunningLathe::~RunningLathe() {
  if (!running()) return;
  signal(SIGKILL);
  static_cast<void>(finish());
}

void RunningLathe::signal(int number) const {
  if (!ended_) kill(pid_, number);
}

bool RunningLathe::running() {
  if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
  return !ended_;
}

Finished RunningLathe::finish() {
  if (!ended_) waitpid(pid_, &status_, 0);
  ended_ = true;
  Finished finished;
  finished.code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  finished.out = read_and_remove(stem_ + ".out");
  finished.err = read_and_remove(stem_ + ".err");
  return finished;
}

Finished run_lathe(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return RunningLathe(arguments, environment).finish();
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
