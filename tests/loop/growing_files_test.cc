#include "lathe/loop/growing_files.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace lathe {
namespace {

using test::error_of;
using test::TempFolder;
using Names = std::vector<std::string>;

constexpr double kLong = 60;    // s: never reached
constexpr double kShort = 0.2;  // s: reached
constexpr double kPoll = 0.02;

bool never() {
  return false;
}

// Calls `act` after a moment, on another thread.
template <typename Act>
std::jthread soon(const Act& act) {
  return std::jthread([act] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    act();
  });
}

void append(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

class GrowingFilesTest : public ::testing::Test {
 protected:
  Names names(const GrowingFiles& growing) const {
    Names names;
    for (const std::string& file : growing.files()) names.push_back(std::filesystem::path(file).filename());
    return names;
  }
  TempFolder folder_;
  Log log_{false};
};

TEST(NameAfter, CountsTheLastNumberOn) {
  EXPECT_EQ(name_after("r/step_000009.jsonl"), "r/step_000010.jsonl");
  EXPECT_EQ(name_after("r2/step_999.jsonl.gz"), "r2/step_1000.jsonl.gz");
  EXPECT_EQ(name_after("r2/part1_7.jsonl"), "r2/part1_8.jsonl");
  EXPECT_EQ(name_after("r2/all.jsonl"), "");
}

TEST_F(GrowingFilesTest, WhatIsThereIsReadyAtOnce) {
  folder_.write("step_2.jsonl", "{}\n");
  folder_.write("step_10.jsonl", "{}\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  GrowingFiles growing(folder_.path(), kLong, log_, kPoll);
  EXPECT_TRUE(growing.wait(0, never));
  EXPECT_TRUE(growing.wait(1, never));
  EXPECT_EQ(names(growing), (Names{"step_2.jsonl", "step_10.jsonl"}));
  EXPECT_LT(growing.take_waited(), 1);
}

TEST_F(GrowingFilesTest, WaitsForTheFirstFileAndForTheNext) {
  GrowingFiles growing(folder_.path() + "/later", kLong, log_, kPoll);
  {
    const auto sampler = soon([&] {
      std::filesystem::create_directory(folder_ / "later");
      folder_.write("later/step_1.jsonl", "{}\n");
    });
    EXPECT_TRUE(growing.wait(0, never));
  }
  EXPECT_EQ(names(growing), Names{"step_1.jsonl"});
  EXPECT_GT(growing.take_waited(), 0.05);
  EXPECT_EQ(growing.take_waited(), 0);
  const auto sampler = soon([&] { folder_.write("later/step_2.jsonl", "{}\n"); });
  EXPECT_TRUE(growing.wait(1, never));
  EXPECT_EQ(names(growing), (Names{"step_1.jsonl", "step_2.jsonl"}));
}

TEST_F(GrowingFilesTest, GivesUpByNameAndTime) {
  const std::string first = folder_.write("step_009.jsonl", "{}\n");
  GrowingFiles growing(folder_.path(), kShort, log_, kPoll);
  ASSERT_TRUE(growing.wait(0, never));
  EXPECT_EQ(
      error_of(ErrorKind::kRetryable, [&] { static_cast<void>(growing.wait(1, never)); }),
      folder_.path() + ": no new rollout file for 0 s (data.wait_s), expected '" + folder_.path() +
          "/step_010.jsonl' next | does the sampler run? the same command goes on when there are new files");
  EXPECT_GE(growing.take_waited(), kShort);
  folder_.write("step_010.jsonl", "");
  const std::string text =
      error_of(ErrorKind::kRetryable, [&] { static_cast<void>(growing.wait(1, never)); });
  EXPECT_NE(text.find("step_010.jsonl' is empty since"), std::string::npos) << text;
}

TEST_F(GrowingFilesTest, AStopEndsTheWait) {
  GrowingFiles growing(folder_.path(), kLong, log_, kPoll);
  int asked = 0;
  EXPECT_FALSE(growing.wait(0, [&] { return ++asked == 3; }));
}

// A writer that appends slowly: the file is taken whole.
TEST_F(GrowingFilesTest, AFileThatGrowsIsTakenWhenItIsWhole) {
  const std::string path = folder_.write("step_1.jsonl", "{\"a\":");
  GrowingFiles growing(folder_.path(), 2, log_, kPoll);
  const auto sampler = soon([&] {
    for (int i = 0; i < 5; ++i) {
      append(path, " ");
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
    }
    append(path, "1}\n");
  });
  EXPECT_TRUE(growing.wait(0, never));
  EXPECT_EQ(test::bytes_of_file(path), "{\"a\":     1}\n");
}

TEST_F(GrowingFilesTest, AFileWithoutALineBreakIsTakenAfterTheWholeWait) {
  folder_.write("step_1.jsonl", "{}");
  GrowingFiles growing(folder_.path(), kShort, log_, kPoll);
  EXPECT_TRUE(growing.wait(0, never));
  EXPECT_GE(growing.take_waited(), kShort / 2);
  EXPECT_TRUE(growing.wait(0, never));  // now it is old
  EXPECT_LT(growing.take_waited(), kShort / 2);
}

TEST_F(GrowingFilesTest, FilesBeingWrittenAndLateOnesAreLeftOut) {
  folder_.write("b_2.jsonl", "{}\n");
  folder_.write("b_3.jsonl.tmp", "{}\n");
  folder_.write(".b_4.jsonl", "{}\n");
  folder_.write("b_5.jsonl.partial", "{}\n");
  const std::string log_file = folder_ / "log.txt";
  log_.add_file(log_file);
  GrowingFiles growing(folder_ / "b_*", kLong, log_, kPoll);
  ASSERT_TRUE(growing.wait(0, never));
  EXPECT_EQ(names(growing), Names{"b_2.jsonl"});
  folder_.write("b_1.jsonl", "{}\n");
  folder_.write("b_6.jsonl", "{}\n");
  ASSERT_TRUE(growing.wait(1, never));
  ASSERT_TRUE(growing.wait(1, never));
  EXPECT_EQ(names(growing), (Names{"b_2.jsonl", "b_6.jsonl"}));
  const std::string text = test::bytes_of_file(log_file);
  const size_t at = text.find("b_1.jsonl: left out: it came after");
  EXPECT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.find("left out", at + 20), std::string::npos) << text;  // said once
}

TEST_F(GrowingFilesTest, UsedFilesMayBeGone) {
  folder_.write("step_3.jsonl", "{}\n");
  folder_.write("step_4.jsonl", "{}\n");
  GrowingFiles growing(folder_.path(), kLong, log_, kPoll);
  growing.set_used({folder_ / "step_1.jsonl", folder_ / "step_3.jsonl"});
  EXPECT_TRUE(growing.wait(2, never));
  EXPECT_EQ(names(growing), (Names{"step_1.jsonl", "step_3.jsonl", "step_4.jsonl"}));
}

TEST_F(GrowingFilesTest, OneFileDoesNotGrow) {
  const std::string file = folder_.write("all.jsonl", "{}\n");
  EXPECT_EQ(error_of(ErrorKind::kConfig, [&] { const GrowingFiles growing(file, 5, log_); }),
            "data.wait_s: has no effect: data.rollouts is the file '" + file +
                "', expected a folder or a glob | give the folder that the sampler writes its step files to, "
                "or leave "
                "data.wait_s at 0");
}

}  // namespace
}  // namespace lathe
