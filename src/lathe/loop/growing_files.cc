#include "lathe/loop/growing_files.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include <sys/stat.h>

#include "lathe/core/error.h"
#include "lathe/data/rollouts.h"
#include "lathe/engine/device_thread.h"

namespace lathe {
namespace fs = std::filesystem;
namespace {

constexpr double kSlice = 0.1;  // s: how soon a stop is heard

// Seconds since a file changed, by the file system's clock, which may go otherwise than ours.
double age_of(int64_t changed_ns) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - changed_ns) *
         1e-9;
}

// Of its first `bytes`.
bool ends_with_line_break(const std::string& path, int64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(bytes - 1);
  return file.get() == '\n';
}

}  // namespace

std::string name_after(const std::string& path) {
  const fs::path whole(path);
  std::string name = whole.filename().string();
  const size_t last = name.find_last_of("0123456789");
  if (last == std::string::npos) return "";
  size_t first = last;
  while (first > 0 && name[first - 1] >= '0' && name[first - 1] <= '9') --first;
  for (size_t i = last + 1; i-- > first;) {
    if (name[i] != '9') {
      ++name[i];
      return (whole.parent_path() / name).string();
    }
    name[i] = '0';
  }
  name.insert(first, "1");
  return (whole.parent_path() / name).string();
}

GrowingFiles::GrowingFiles(std::string pattern, double wait_s, Log& log, double poll_s)
    : pattern_(std::move(pattern)), wait_s_(wait_s), poll_s_(std::min(poll_s, wait_s)), log_(log) {
  look(0);
}

void GrowingFiles::set_used(const std::vector<std::string>& used) {
  files_ = used;
  look(used.size());
}

void GrowingFiles::look(size_t used) {
  std::error_code ignored;
  if (fs::is_regular_file(pattern_, ignored)) {
    config_error(
        "data.wait_s",
        fmt::format("has no effect: data.rollouts is the file '{}', expected a folder or a glob", pattern_),
        "give the folder that the sampler writes its step files to, or leave data.wait_s at 0");
  }
  files_.resize(used);
  const std::set<std::string> known(files_.begin(), files_.end());
  for (const std::string& file : rollout_files_so_far(pattern_)) {
    if (known.count(file) != 0) continue;
    if (used == 0 || rollout_file_before(files_[used - 1], file)) {
      files_.push_back(file);
    } else if (late_.insert(file).second) {
      log_.warning("{}: left out: it came after {} was used, and its name is before that", file,
                   files_[used - 1]);
    }
  }
}

bool GrowingFiles::is_complete(const std::string& path, double now) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  const int64_t changed_ns = status.st_mtim.tv_sec * int64_t{1000000000} + status.st_mtim.tv_nsec;
  if (seen_.path != path || seen_.bytes != status.st_size || seen_.changed_ns != changed_ns) {
    seen_ = {.path = path, .bytes = status.st_size, .changed_ns = changed_ns, .since = now};
    last_change_ = now;
  }
  if (status.st_size == 0) return false;
  const double unchanged = std::max(now - seen_.since, age_of(changed_ns));
  if (unchanged >= wait_s_) return true;
  return unchanged >= poll_s_ && (path.ends_with(".gz") || ends_with_line_break(path, status.st_size));
}

bool GrowingFiles::wait(size_t used, const std::function<bool()>& stop,
                        const std::function<void()>& on_wait) {
  double start = steady_seconds();
  double now = start;
  last_change_ = start;
  std::optional<Activity> activity;
  bool found = false;
  for (;;) {
    look(used);
    found = files_.size() > used && is_complete(files_[used], now);
    if (found || stop()) break;
    if (!activity.has_value()) {
      if (on_wait) on_wait();
      activity.emplace(log_.activity("waiting for " + next_name(used)));
      start = now = last_change_ = steady_seconds();
    }
    if (now - last_change_ >= wait_s_) {
      waited_ += now - start;
      give_up(used);
    }
    for (const double until = now + poll_s_; now < until && !stop(); now = steady_seconds()) {
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(kSlice, until - now)));
    }
  }
  waited_ += now - start;
  return found;
}

std::string GrowingFiles::next_name(size_t used) const {
  if (files_.size() > used) return files_[used];
  const std::string name = used == 0 ? "" : name_after(files_[used - 1]);
  return name.empty() ? pattern_ : name;
}

void GrowingFiles::give_up(size_t used) const {
  const std::string what =
      files_.size() > used ? fmt::format("'{}' is empty since {:.0f} s", files_[used], wait_s_)
                           : fmt::format("no new rollout file for {:.0f} s (data.wait_s), expected '{}' next",
                                         wait_s_, next_name(used));
  retryable_error(pattern_, what, "does the sampler run? the same command goes on when there are new files");
}

double GrowingFiles::take_waited() {
  return std::exchange(waited_, 0.0);
}

}  // namespace lathe
