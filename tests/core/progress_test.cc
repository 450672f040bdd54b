#include "lathe/core/progress.h"

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Lines = std::vector<std::string>;

TEST(Duration, InUnitsThatPeopleCountIn) {
  EXPECT_EQ(duration_text(0.4), "0 s");
  EXPECT_EQ(duration_text(45), "45 s");
  EXPECT_EQ(duration_text(180), "3 min");
  EXPECT_EQ(duration_text(9000), "2.5 h");
  EXPECT_EQ(duration_text(345600), "4.0 days");
}

TEST(ProgressText, CountRateAndTimeLeft) {
  EXPECT_EQ(progress_text("loading weights", 50, 200, "tensors", 10, true),
            "loading weights [#####---------------] 50/200 tensors, 5/s, eta 30 s");
  EXPECT_EQ(progress_text("loading weights", 50, 200, "tensors", 10, false),
            "loading weights: 50/200 tensors, 5/s, eta 30 s");
  EXPECT_EQ(progress_text("training", 2, 10, "steps", 20, false),
            "training: 2/10 steps, 10.0 s each, eta 80 s");
  EXPECT_EQ(progress_text("reading a.jsonl", 4096, 0, "lines", 2, true),
            "reading a.jsonl: 4096 lines, 2048/s");
  EXPECT_EQ(progress_text("loading weights", 35'000'000, 7'000'000'000, "numbers", 1, false),
            "loading weights: 35.0M/7.0G numbers, 35.0M/s, eta 3 min");
  EXPECT_EQ(progress_text("reading a.jsonl", 12345, 0, "lines", 1, false),
            "reading a.jsonl: 12.3k lines, 12.3k/s");
  EXPECT_EQ(progress_text("saving", 0, 8, "tensors", 3, true), "saving [--------------------] 0/8 tensors");
  EXPECT_EQ(progress_text("saving", 8, 8, "tensors", 4, true),
            "saving [####################] 8/8 tensors, 2/s");
  EXPECT_EQ(progress_text("waiting for step_3.jsonl", 0, 0, "", 12, true), "waiting for step_3.jsonl, 12 s");
}

TEST(ProgressBoard, ABarForTheNewestActivityOnATerminal) {
  ProgressBoard board(true, {});
  EXPECT_EQ(board.display(0).bar, "");
  const int64_t training = board.begin("training", 10, "steps", 100);
  EXPECT_EQ(board.display(101.9).bar, "");  // short ones are not shown
  EXPECT_EQ(board.display(102).bar, "training [--------------------] 0/10 steps");
  board.advance(training, 2, 104);
  const int64_t reading = board.begin("reading", 0, "lines", 104);
  EXPECT_EQ(board.display(105).bar, "");
  EXPECT_EQ(board.display(107).bar, "reading: 0 lines");
  board.end(reading, 108);
  EXPECT_EQ(board.display(110).bar, "training [####----------------] 2/10 steps, 5.0 s each, eta 40 s");
  board.set_what(training, "training, step 3", 110);
  EXPECT_EQ(board.display(110).bar.substr(0, 17), "training, step 3 ");
  board.end(training, 111);
  EXPECT_EQ(board.display(120).bar, "");
  EXPECT_TRUE(board.display(119).infos.empty());
}

TEST(ProgressBoard, ALineNowAndThenWithoutATerminal) {
  ProgressBoard board(false, {.line_every = 30, .quiet = 1000});
  const int64_t id = board.begin("reading", 100, "lines", 0);
  board.advance(id, 10, 5);
  EXPECT_TRUE(board.display(29).infos.empty());
  EXPECT_EQ(board.display(30).infos, Lines{"reading: 10/100 lines, 3.0 s each, eta 4 min"});
  EXPECT_EQ(board.display(30).bar, "");
  board.advance(id, 10, 35);
  EXPECT_TRUE(board.display(59).infos.empty());
  board.logged(59);  // a line of the program counts too
  EXPECT_TRUE(board.display(70).infos.empty());
  EXPECT_EQ(board.display(89).infos.size(), 1U);
  EXPECT_TRUE(board.display(200).infos.empty());  // nothing new to say
}

TEST(ProgressBoard, SaysOncePerQuietMinuteThatNothingHappened) {
  ProgressBoard board(false, {.line_every = 1e9, .quiet = 60});
  const int64_t training = board.begin("training", 0, "", 0);
  const int64_t waiting = board.begin("waiting for step_2.jsonl", 0, "", 10);
  EXPECT_TRUE(board.display(69.9).alarms.empty());
  EXPECT_EQ(board.display(70).alarms,
            Lines{"nothing happened for 60 s; busy with: training, waiting for step_2.jsonl"});
  EXPECT_TRUE(board.display(71).alarms.empty());
  EXPECT_TRUE(board.display(129).alarms.empty());
  EXPECT_EQ(board.display(131).alarms,
            Lines{"nothing happened for 120 s; busy with: training, waiting for step_2.jsonl"});
  board.end(waiting, 140);
  EXPECT_TRUE(board.display(199).alarms.empty());
  EXPECT_EQ(board.display(200).alarms, Lines{"nothing happened for 60 s; busy with: training"});
  board.advance(training, 1, 210);
  EXPECT_TRUE(board.display(269).alarms.empty());
  board.logged(269);
  EXPECT_TRUE(board.display(328).alarms.empty());
  board.end(training, 328);
  EXPECT_TRUE(board.display(1000).alarms.empty());  // the program is not busy
}

TEST(ProgressThread, WorksUntilTheEndAndThroughExceptions) {
  std::atomic<int> calls = 0;
  std::promise<void> third;
  {
    const ProgressThread thread(
        [&] {
          if (++calls == 3) third.set_value();
          throw std::runtime_error("a display that fails");
        },
        0.001, 10);
    ASSERT_EQ(third.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  const int at_the_end = calls;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(calls, at_the_end);
}

TEST(ProgressThread, ADisplayThatHangsIsLeftBehind) {
  struct Shared {
    std::promise<void> entered;
    std::promise<void> release;
  };
  const auto shared = std::make_shared<Shared>();
  const auto start = std::chrono::steady_clock::now();
  {
    const ProgressThread thread(
        [shared] {
          shared->entered.set_value();
          shared->release.get_future().wait();
        },
        0.001, 0.05);
    ASSERT_EQ(shared->entered.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  shared->release.set_value();
}

}  // namespace
}  // namespace lathe
