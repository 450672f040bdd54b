#include "lathe/core/progress.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

namespace lathe {
namespace {

constexpr int64_t kBarCells = 20;

// 950, 12.3k, 4.5M, 1.2G.
std::string count_text(double count) {
  if (count < 10000) return fmt::format("{:.0f}", count);
  if (count < 999.95e3) return fmt::format("{:.1f}k", count / 1e3);
  if (count < 999.95e6) return fmt::format("{:.1f}M", count / 1e6);
  return fmt::format("{:.1f}G", count / 1e9);
}

std::string rate_text(double rate) {
  if (rate >= 99.5) return count_text(rate) + "/s";
  return rate >= 1 ? fmt::format("{:.2g}/s", rate) : fmt::format("{:.1f} s each", 1 / rate);
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 99.5) return fmt::format("{:.0f} s", seconds);
  if (seconds < 99.5 * 60) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 72.0 * 3600) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86400);
}

std::string progress_text(const std::string& what, int64_t done, int64_t total, const std::string& unit,
                          double seconds, bool with_bar) {
  if (unit.empty()) return fmt::format("{}, {}", what, duration_text(seconds));
  std::string text = what;
  if (total > 0 && with_bar) {
    const int64_t cells = std::clamp<int64_t>(done * kBarCells / total, 0, kBarCells);
    text += fmt::format(" [{}{}]", std::string(static_cast<size_t>(cells), '#'),
                        std::string(static_cast<size_t>(kBarCells - cells), '-'));
  } else {
    text += ":";
  }
  text += " " + count_text(static_cast<double>(done));
  if (total > 0) text += "/" + count_text(static_cast<double>(total));
  text += " " + unit;
  if (done == 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(done) / seconds;
  text += ", " + rate_text(rate);
  if (total > done) text += ", eta " + duration_text(static_cast<double>(total - done) / rate);
  return text;
}

ProgressBoard::Activity* ProgressBoard::find(int64_t id) {
  const auto found = std::find_if(open_.begin(), open_.end(), [id](const Activity& a) { return a.id == id; });
  return found == open_.end() ? nullptr : &*found;
}

void ProgressBoard::happened(double now) {
  last_event_ = now;
  quiet_times_ = 0;
}

int64_t ProgressBoard::begin(const std::string& what, int64_t total, const std::string& unit, double now) {
  const std::lock_guard lock(mutex_);
  happened(now);
  open_.push_back({.id = ++last_id_, .what = what, .unit = unit, .total = total, .since = now});
  return last_id_;
}

void ProgressBoard::advance(int64_t id, int64_t count, double now) {
  const std::lock_guard lock(mutex_);
  happened(now);
  if (Activity* activity = find(id)) activity->done += count;
}

void ProgressBoard::set_what(int64_t id, const std::string& what, double now) {
  const std::lock_guard lock(mutex_);
  happened(now);
  if (Activity* activity = find(id)) activity->what = what;
}

void ProgressBoard::end(int64_t id, double now) {
  const std::lock_guard lock(mutex_);
  happened(now);
  std::erase_if(open_, [id](const Activity& a) { return a.id == id; });
}

void ProgressBoard::logged(double now) {
  const std::lock_guard lock(mutex_);
  happened(now);
  last_line_ = now;
}

ProgressBoard::Display ProgressBoard::display(double now) {
  const std::lock_guard lock(mutex_);
  Display display;
  if (open_.empty()) return display;
  if (const auto quiet = static_cast<int64_t>((now - last_event_) / times_.quiet); quiet > quiet_times_) {
    quiet_times_ = quiet;
    last_line_ = now;
    std::string doing;
    for (const Activity& activity : open_) doing += (doing.empty() ? "" : ", ") + activity.what;
    display.alarms.push_back(fmt::format("nothing happened for {:.0f} s; busy with: {}",
                                         static_cast<double>(quiet) * times_.quiet, doing));
  }
  Activity& newest = open_.back();
  const double seconds = now - newest.since;
  if (seconds < times_.show_after) return display;
  if (terminal_) {
    display.bar = progress_text(newest.what, newest.done, newest.total, newest.unit, seconds, true);
  } else if (now - std::max(last_line_, newest.since) >= times_.line_every && newest.done != newest.shown) {
    newest.shown = newest.done;
    last_line_ = now;
    display.infos.push_back(
        progress_text(newest.what, newest.done, newest.total, newest.unit, seconds, false));
  }
  return display;
}

// Owned by both sides: the thread may outlive the object that started it.
struct ProgressThread::State {
  std::function<void()> work;
  std::chrono::duration<double> interval{};
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;

  void run() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, interval, [this] { return stop; })) {
      lock.unlock();
      try {
        work();
      } catch (...) {  // NOLINT(bugprone-empty-catch): a display that fails is no reason to end a run
      }
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }
};

ProgressThread::ProgressThread(std::function<void()> work, double interval, double patience)
    : state_(std::make_shared<State>()), patience_(patience) {
  state_->work = std::move(work);
  state_->interval = std::chrono::duration<double>(interval);
  // Signals are the business of the threads that are there already.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([state = state_] { state->run(); }).detach();
  } catch (const std::system_error&) {  // no more threads: a run without a display
    state_->ended = true;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ProgressThread::~ProgressThread() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, patience_, [this] { return state_->ended; });
}

}  // namespace lathe
