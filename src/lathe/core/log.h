// The run's log: stderr, and log.txt of the run folder once it is known. Not a global: a Log is handed to who needs it.
#pragma once

#include <memory>
#include <string>

#include <fmt/format.h>

namespace lathe {

class Log {
 public:
  // to_stderr = false: silent until a file is added (tests).
  explicit Log(bool to_stderr = true);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void add_file(const std::string& path);  // throws a config error if it cannot be opened
  void write_info(const std::string& message);
  void write_warning(const std::string& message);

  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write_info(fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    write_warning(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace lathe
