#include "lathe/core/log.h"

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "lathe/core/clock.h"
#include "lathe/core/error.h"

namespace lathe {
namespace {

constexpr double kInterval = 0.2;   // s between two looks at the board
constexpr double kPatience = 2;     // s for a terminal that does not take what is drawn
constexpr int kDrawingTries = 100;  // a millisecond each
constexpr size_t kUsualColumns = 80;

size_t terminal_columns() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

bool is_terminal() {
  const char* kind = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): read at start-up
  return ::isatty(STDERR_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
}

// The display never waits: a terminal or pipe that is stopped is left alone.
bool takes_text() {
  pollfd terminal{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&terminal, 1, 0) == 1 && (terminal.revents & POLLOUT) != 0;
}

void draw(const std::string& text) {
  if (takes_text()) std::ignore = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

struct LogSinks {
  LogSinks(bool terminal, const ProgressTimes& times)
      : board(std::make_shared<ProgressBoard>(terminal, times)) {
    logger.set_level(spdlog::level::info);
    logger.flush_on(spdlog::level::info);
  }

  spdlog::logger logger{"lathe"};
  std::shared_ptr<ProgressBoard> board;
  std::mutex drawing;
  bool bar_shown = false;

  void write(spdlog::level::level_enum level, const std::string& message) {
    const std::lock_guard lock(drawing);
    erase_bar();
    logger.log(level, message);
  }
  void erase_bar() {
    if (std::exchange(bar_shown, false)) draw("\r\x1b[K");
  }
  void hide_bar() {
    // Not for ever: the display may hang.
    for (int i = 0; i < kDrawingTries; ++i) {
      const std::unique_lock lock(drawing, std::try_to_lock);
      if (lock.owns_lock()) return erase_bar();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // By the display's thread.
  void show() {
    if (!takes_text()) return;
    const ProgressBoard::Display display = board->display(steady_seconds());
    for (const std::string& line : display.infos) write(spdlog::level::info, line);
    for (const std::string& line : display.alarms) write(spdlog::level::warn, line);
    const std::lock_guard lock(drawing);
    if (display.bar.empty()) {
      erase_bar();
    } else {
      draw("\r" + display.bar.substr(0, terminal_columns() - 1) + "\x1b[K");
      bar_shown = true;
    }
  }
};

Activity::Activity(Activity&& other) noexcept : sinks_(std::move(other.sinks_)), id_(other.id_) {}
Activity::~Activity() {
  if (sinks_ == nullptr) return;
  sinks_->board->end(id_, steady_seconds());
  sinks_->hide_bar();
}
void Activity::advance(int64_t count) const {
  sinks_->board->advance(id_, count, steady_seconds());
}
void Activity::set_what(const std::string& what) const {
  sinks_->board->set_what(id_, what, steady_seconds());
}

Log::Log(bool to_stderr) : sinks_(std::make_shared<LogSinks>(to_stderr && is_terminal(), ProgressTimes{})) {
  if (to_stderr) start(kInterval);
}

Log::Log(bool terminal, const ProgressTimes& times, double interval)
    : sinks_(std::make_shared<LogSinks>(terminal, times)) {
  start(interval);
}

Log::~Log() {
  thread_.reset();
  hide_bar();
}

void Log::start(double interval) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sink->set_pattern("%^%L%$ %v");
  sinks_->logger.sinks().push_back(std::move(sink));
  thread_ = std::make_unique<ProgressThread>([sinks = sinks_] { sinks->show(); }, interval, kPatience);
}

void Log::add_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    const std::lock_guard lock(sinks_->drawing);
    sinks_->logger.sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& e) {
    config_error(path, fmt::format("cannot open the log file: {}", e.what()), "choose a writable run.dir");
  }
}

void Log::write_info(const std::string& message) {
  sinks_->board->logged(steady_seconds());
  sinks_->write(spdlog::level::info, message);
}
void Log::write_warning(const std::string& message) {
  sinks_->board->logged(steady_seconds());
  sinks_->write(spdlog::level::warn, message);
}

Activity Log::activity(const std::string& what, int64_t total, const std::string& unit) {
  return Activity(sinks_, sinks_->board->begin(what, total, unit, steady_seconds()));
}

void Log::hide_bar() const {
  sinks_->hide_bar();
}

}  // namespace lathe
