// Rollout files written for one test, and the error that reading one gives.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lathe/core/error.h"
#include "lathe/data/rollouts.h"

namespace lathe {

// A folder of the running test, emptied at the start and removed at the end.
class TestFolder {
 public:
  TestFolder() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("lathe_data_") + info->test_suite_name() + "_" + info->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

struct ReadFault {
  std::string message;  // without the folder
  std::string hint;
};

// Reads `text` as rollouts.jsonl and returns the data error it gives.
inline ReadFault read_fault(const std::string& text, const RolloutOptions& options = {}) {
  const TestFolder folder;
  const std::string file = folder.write("r.jsonl", text);
  try {
    static_cast<void>(read_rollouts(file, options));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
    std::string message = error.what();
    const std::string prefix = folder.path("");
    for (size_t at = message.find(prefix); at != std::string::npos; at = message.find(prefix)) {
      message.erase(at, prefix.size());
    }
    return {message, error.hint()};
  }
  return {"read without an error", ""};
}

inline RolloutFile read_text(const std::string& text, const RolloutOptions& options = {}) {
  const TestFolder folder;
  return read_rollouts(folder.write("r.jsonl", text), options);
}

}  // namespace lathe
