// `lathe bench` on the binary.
#include <nlohmann/json.hpp>

#include "cli/run_lathe.h"

namespace lathe {
namespace {

class Bench : public CommandTest {};

TEST_F(Bench, PartsPrintTheirReport) {
  const Finished text = run_lathe({"bench", "attention", "--tokens", "64", "--repeats", "1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("verified against the reference"), std::string::npos) << text.out;
  const Finished done = run_lathe({"bench", "gdn", "--tokens", "100", "--repeats", "1", "--json"});
  EXPECT_EQ(done.code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json.at("tokens"), 100);
  EXPECT_EQ(json.at("verified"), true);
  const Finished alone = run_lathe({"bench", "exchange", "--bytes", "64KiB", "--repeats", "1", "--json"});
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(nlohmann::json::parse(alone.out).at("bytes"), 65536);
}

TEST_F(Bench, UsageFaultsNameTheOption) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"bench"}, "error: lathe bench: A subcommand is required\nhint: see `lathe bench --help`\n"},
      {{"bench", "gdn", "--chnk=64"},
       "error: lathe bench gdn: The following argument was not expected: --chnk=64\nhint: did you mean "
       "'--chunk'?\n"},
      {{"bench", "moe", "--top-k", "17"},
       "error: --top-k: 17 of 16 experts\nhint: a token's experts are distinct\n"},
      {{"bench", "attention", "--heads", "3"},
       "error: --heads: 3 is not a multiple of --kv-heads 2\nhint: heads share keys in equal groups\n"},
      {{"bench", "attention", "--tokens", "5", "--segments", "6"},
       "error: --segments: 6 segments in 5 tokens\nhint: a segment has a token at least\n"}};
  for (const auto& [arguments, expected] : cases) {
    const Finished done = run_lathe(arguments);
    EXPECT_EQ(done.code, 2);
    EXPECT_EQ(done.err, expected);
    EXPECT_EQ(done.out, "");
  }
  EXPECT_EQ(run_lathe({"bench", "step", "--config", "absent.json"}).code, 4);
  const Finished huge = run_lathe({"bench", "head", "--tokens", "16000000", "--vocab", "16000000"});
  EXPECT_EQ(huge.code, 2);
  EXPECT_NE(huge.err.find("of memory are free\nhint: make them smaller\n"), std::string::npos) << huge.err;
  const Finished wide = run_lathe({"bench", "exchange", "--bytes", "1024GiB"});
  EXPECT_EQ(wide.code, 2);
  EXPECT_NE(wide.err.find("hint: make it smaller\n"), std::string::npos) << wide.err;
  EXPECT_EQ(run_lathe({"bench", "gdn", "--key-dim", "100000"}).code, 2);
  for (const char* share : {"0", "nan"})
    EXPECT_EQ(run_lathe({"bench", "head", "--scored", share}).code, 2) << share;
  EXPECT_EQ(run_lathe({"bench", "attention", "--tokens", "1", "--repeats", "1"}).code, 0);
  EXPECT_EQ(run_lathe({"bench", "attention", "--tokens", "0"}).code, 2);
}

}  // namespace
}  // namespace lathe
