// The run's log: stderr, and log.txt of the run folder once it is known; and the display of what is being done. Not a
// global: a Log is handed to who needs it. Safe to use from several threads.
#pragma once

#include <memory>
#include <string>

#include <fmt/format.h>

#include "lathe/core/progress.h"

namespace lathe {

struct LogSinks;

// Something that takes time, from construction to destruction. Made by Log::activity.
class Activity {
 public:
  ~Activity();
  Activity(Activity&& other) noexcept;
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;
  Activity& operator=(Activity&&) = delete;

  void advance(int64_t count = 1) const;
  void set_what(const std::string& what) const;

 private:
  friend class Log;
  Activity(std::shared_ptr<LogSinks> sinks, int64_t id) : sinks_(std::move(sinks)), id_(id) {}
  std::shared_ptr<LogSinks> sinks_;
  int64_t id_;
};

class Log {
 public:
  // to_stderr = false: silent until a file is added, and without a display (tests).
  explicit Log(bool to_stderr = true);
  // To stderr, with a display whose thread looks every `interval` seconds. terminal: draw a bar.
  Log(bool terminal, const ProgressTimes& times, double interval);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void add_file(const std::string& path);  // throws a config error if it cannot be opened
  void write_info(const std::string& message);
  void write_warning(const std::string& message);

  // what: "loading weights"; total: how many `unit`s, 0 = not known; unit "": nothing is counted.
  [[nodiscard]] Activity activity(const std::string& what, int64_t total = 0, const std::string& unit = "");
  // Takes the bar away for a moment: something else is about to be written to the terminal.
  void hide_bar() const;

  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write_info(fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    write_warning(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void start(double interval);

  std::shared_ptr<LogSinks> sinks_;  // the display's thread has them too
  std::unique_ptr<ProgressThread> thread_;
};

}  // namespace lathe
