// A writable copy of a small golden case (model, rollouts.jsonl, run.yaml) in the test's folder, to be damaged.
#pragma once

#include <fstream>
#include <sstream>

#include "cli/run_lathe.h"

namespace lathe {

class GoldenRun : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    copy("llama");
  }

  static void copy(const std::string& name) {
    namespace fs = std::filesystem;
    const fs::path from = fs::path(LATHE_GOLDENS) / name;
    fs::create_directories("model");
    std::vector<fs::path> files{"rollouts.jsonl", "run.yaml"};
    for (const auto& entry : fs::directory_iterator(from / "model")) {
      if (entry.is_regular_file()) files.push_back("model" / entry.path().filename());
    }
    for (const fs::path& file : files) {
      fs::copy_file(from / file, file, fs::copy_options::overwrite_existing);
      fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
    }
  }

  // `more`: further arguments.
  static Finished train(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"train", "run.yaml", "--set", "run.threads=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_lathe(arguments);
  }
  static Finished score(const std::vector<std::string>& more = {},
                        const std::string& rollouts = "rollouts.jsonl",
                        const std::string& out = "scored.jsonl") {
    std::vector<std::string> arguments{"score", "--model", "model", "--rollouts",   rollouts,
                                       "--out", out,       "--set", "run.threads=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_lathe(arguments);
  }

  static std::string bytes(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

  // Refused with this code, the error first on stderr, and nothing made.
  static void expect_refused(const Finished& done, int code, const std::string& error) {
    EXPECT_EQ(done.code, code) << error << "\n" << done.err;
    EXPECT_EQ(done.err.substr(0, error.size()), error) << done.err;
    EXPECT_EQ(done.out, "");
    EXPECT_FALSE(std::filesystem::exists("run"));
    EXPECT_FALSE(std::filesystem::exists("scored.jsonl"));
  }
};

}  // namespace lathe
