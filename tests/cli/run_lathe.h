// Runs the `lathe` binary with its output caught.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lathe {

struct Finished {
  int code = -1;
  std::string out;
  std::string err;
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
