// Every stored input through its fuzz target: seeds, and inputs that once failed.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/temp_folder.h"

#include "fuzz/targets.h"

namespace lathe::fuzz {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = fs::path(LATHE_SOURCE_DIR) / "fuzz" / "corpus";

std::vector<fs::path> inputs_of(const std::string& target) {
  std::vector<fs::path> inputs;
  for (const auto& entry : fs::directory_iterator(kCorpus / target)) inputs.push_back(entry.path());
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

class Replay : public ::testing::TestWithParam<NamedTarget> {};

TEST_P(Replay, TakesOrRefusesEveryStoredInput) {
  const std::vector<fs::path> inputs = inputs_of(GetParam().name);
  EXPECT_FALSE(inputs.empty());
  for (const fs::path& input : inputs) {
    SCOPED_TRACE(input.string());
    const std::string bytes = test::bytes_of_file(input.string());
    EXPECT_NO_THROW(GetParam().run(bytes));
    // Cut inputs, and ones with a damaged byte in the middle.
    EXPECT_NO_THROW(GetParam().run(std::string_view(bytes).substr(0, bytes.size() / 2)));
    std::string damaged = bytes;
    if (!damaged.empty()) damaged[damaged.size() / 2] ^= 0x15;
    EXPECT_NO_THROW(GetParam().run(damaged));
  }
}

INSTANTIATE_TEST_SUITE_P(Corpus, Replay, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& named) { return std::string(named.param.name); });

TEST(Corpus, KnowsEveryFolderOfTheCorpus) {
  std::vector<std::string> names;
  for (const NamedTarget& target : targets()) names.emplace_back(target.name);
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    EXPECT_NE(std::find(names.begin(), names.end(), entry.path().filename().string()), names.end())
        << entry.path() << " belongs to no target";
  }
}

}  // namespace
}  // namespace lathe::fuzz
