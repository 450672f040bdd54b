// Run files for the tests of config/, in a folder of their own.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lathe/config/load.h"
#include "lathe/config/problems.h"

namespace lathe {

class ConfigFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("lathe_config_") + info->test_suite_name() + "_" + info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The path of a run file with this text.
  std::string file(const std::string& text, const std::string& name = "run.yaml") const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }

  // The least a run needs, in five lines of the file, and then `more`.
  std::string run_file(const std::string& more = "") const { return file(kRequired + more); }

  LoadedConfig load(const std::string& more = "", const std::vector<std::string>& sets = {}) const {
    return load_train_config(run_file(more), sets);
  }

  // The problems of a configuration, a line each with its hint behind " / ", the folder cut from the paths.
  std::string problems(const std::string& path, const std::vector<std::string>& sets = {}) const {
    try {
      static_cast<void>(load_train_config(path, sets));
    } catch (const ConfigProblems& e) {
      std::string text;
      for (const Problem& problem : e.problems()) {
        if (!text.empty()) text += "\n";
        text += short_paths(problem.where.empty() ? problem.what : problem.where + ": " + problem.what);
        if (!problem.hint.empty()) text += " / " + problem.hint;
      }
      EXPECT_EQ(e.exit_code(), 2);
      return text;
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return short_paths(e.what()) + (e.hint().empty() ? "" : " / " + e.hint());
    }
    return "no problem";
  }
  std::string problems_of(const std::string& more, const std::vector<std::string>& sets = {}) const {
    return problems(run_file(more), sets);
  }

  std::string short_paths(std::string text) const {
    const std::string prefix = folder_.string() + "/";
    for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix))
      text.erase(at, prefix.size());
    return text;
  }

  static constexpr const char* kRequired =
      "model: {path: model}\n"
      "run: {dir: run, steps: 3}\n"
      "data:\n"
      "  rollouts: rollouts.jsonl\n"
      "  row_length: 256\n";
  std::filesystem::path folder_;
};

}  // namespace lathe
