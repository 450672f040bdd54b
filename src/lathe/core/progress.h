// What the program is doing, for whoever waits: a bar on a terminal, a line now and then elsewhere, and a word when
// nothing happens for long.
//
// ProgressBoard holds the activities and decides what to show at a given time; it draws nothing and has no clock.
// ProgressThread asks the board at intervals and draws. It can neither end, silence nor hang the run: whatever the drawing
// throws is dropped, and the destructor waits for a drawing that hangs only so long, then leaves it behind.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace lathe {

// Seconds.
struct ProgressTimes {
  double show_after = 2;   // activities that are shorter are not shown
  double line_every = 30;  // without a terminal: between two lines, other log lines included
  double quiet = 60;       // without any event: said once every such time
};

class ProgressBoard {
 public:
  ProgressBoard(bool terminal, const ProgressTimes& times) : terminal_(terminal), times_(times) {}

  // what: "loading weights". total: how many `unit`s there are; 0: not known. The newest open activity is shown.
  [[nodiscard]] int64_t begin(const std::string& what, int64_t total, const std::string& unit, double now);
  void advance(int64_t id, int64_t count, double now);
  void set_what(int64_t id, const std::string& what, double now);
  void end(int64_t id, double now);
  // The program logged a line.
  void logged(double now);

  struct Display {
    std::string bar;                  // "" = none; on a terminal only
    std::vector<std::string> infos;   // log lines
    std::vector<std::string> alarms;  // log lines: nothing happened
  };
  [[nodiscard]] Display display(double now);

 private:
  struct Activity {
    int64_t id = 0;
    std::string what;
    std::string unit;
    int64_t total = 0;
    int64_t done = 0;
    int64_t shown = -1;  // `done` when the last line about it was written
    double since = 0;
  };
  [[nodiscard]] Activity* find(int64_t id);
  void happened(double now);

  bool terminal_;
  ProgressTimes times_;
  std::mutex mutex_;
  std::vector<Activity> open_;  // oldest first
  int64_t last_id_ = 0;
  double last_event_ = 0;
  double last_line_ = 0;
  int64_t quiet_times_ = 0;  // said since the last event
};

// The bar's text: "loading weights [#####-----] 50/100 tensors, 5/s, eta 10 s".
[[nodiscard]] std::string progress_text(const std::string& what, int64_t done, int64_t total,
                                        const std::string& unit, double seconds, bool with_bar);
// "45 s", "3 min", "2.5 h", "4.0 days".
[[nodiscard]] std::string duration_text(double seconds);

// Calls `work` every `interval` seconds on a thread of its own that takes no signals.
class ProgressThread {
 public:
  // patience: seconds that the destructor waits for work in progress.
  ProgressThread(std::function<void()> work, double interval, double patience);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::chrono::duration<double> patience_;
};

}  // namespace lathe
