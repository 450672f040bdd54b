// Runs the `lathe` binary with its output caught.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lathe {

struct Finished {
  int code = -1;
  std::string out;
  std::string err;
};

// The binary while it runs.
class RunningLathe {
 public:
  explicit RunningLathe(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment = {});
  ~RunningLathe();  // kills it if it still runs
  RunningLathe(const RunningLathe&) = delete;
  RunningLathe& operator=(const RunningLathe&) = delete;

  void signal(int number) const;
  [[nodiscard]] bool running();
  // Waits until condition() or the end of the process; false at the end, or when 60 s are over.
  template <typename Condition>
  bool wait_until(const Condition& condition) {
    for (int i = 0; i < 60000; ++i) {
      if (condition()) return true;
      if (!running()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  // Waits. 128 + the signal for one that was killed.
  Finished finish();

 private:
  std::string stem_;
  int pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

// `environment` entries (NAME=VALUE) are added to the test's own.
[[nodiscard]] Finished run_lathe(const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment = {});

// A folder of its own for each test; it is the working directory while the test runs.
class CommandTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Writes a file and returns its name.
  static std::string file(const std::string& name, const std::string& text);

 private:
  std::filesystem::path before_;
  std::filesystem::path folder_;
};

}  // namespace lathe
