#include "lathe/loop/run_folder.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLockName = ".lock";
constexpr const char* kResolvedName = "config.resolved.yaml";
constexpr const char* kLogName = "log.txt";
constexpr const char* kMetricsName = "metrics.jsonl";

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The lines at the beginning of a metrics file that count up to `step`.
struct KeptLines {
  uint64_t bytes = 0;
  int64_t last_step = 0;
  bool rest_is_later = true;  // all that follows is of later steps, or a last line that was cut
};

// -1: not a line of metrics.
int64_t step_of_line(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  const bool whole = json.is_object() && json.contains("step") && json["step"].is_number_integer();
  return whole ? json["step"].get<int64_t>() : -1;
}

KeptLines lines_up_to(const std::string& path, int64_t step) {
  KeptLines kept;
  std::ifstream in(path, std::ios::binary);
  std::string line;
  bool beginning = true;
  while (std::getline(in, line)) {
    const bool cut = in.eof();  // no line break at its end
    const int64_t line_step = cut ? -1 : step_of_line(line);
    beginning = beginning && line_step > kept.last_step && line_step <= step;
    if (beginning) {
      kept.bytes += line.size() + 1;
      kept.last_step = line_step;
    } else if (!cut && line_step <= step) {
      kept.rest_is_later = false;
    }
  }
  return kept;
}

}  // namespace

RunFolder::Lock::Lock(const std::string& folder) {
  const std::string path = folder + "/" + kLockName;
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    config_error("run.dir", fmt::format("'{}' cannot be written: {}", folder, std::strerror(errno)),
                 "choose a folder that you may write to");
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor_);
    config_error("run.dir", fmt::format("'{}' is in use by another lathe", folder),
                 "wait for it to end, or choose another run.dir");
  }
}

RunFolder::Lock::~Lock() {
  ::close(descriptor_);
}

void RunFolder::Lock::write(const std::string& text) const {
  const bool written = ::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, text.data(), text.size(),
                                                                    0) == static_cast<ssize_t>(text.size());
  if (!written) {
    retryable_error("run.dir", fmt::format("{} cannot be written: {}", kLockName, std::strerror(errno)),
                    "free some space, then the same command goes on");
  }
}

bool RunFolder::is_writable_with_token(const std::string& path, const std::string& token) {
  std::ifstream lock(path + "/" + kLockName);
  std::string text;
  return std::getline(lock, text) && text == token && ::access(path.c_str(), W_OK | X_OK) == 0;
}

void RunFolder::check_usable(const std::string& path, const std::string& resume) {
  const fs::path folder(path);
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !fs::is_directory(folder, ignored)) {
    config_error("run.dir", fmt::format("'{}' is a file, expected a folder", path), "choose another run.dir");
  }
  for (const char* name : {kLockName, kResolvedName, kLogName, kMetricsName, "checkpoints/latest"}) {
    check_plain_file((folder / name).string());
  }
  if (resume == "never") {
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().filename() == kLockName) continue;
      config_error("run.dir", fmt::format("'{}' is not empty, and run.resume is never", path),
                   "choose a new or empty run.dir");
    }
  }
  // The folder itself, or the nearest one above it that is there, must be writable.
  fs::path nearest = fs::absolute(folder);
  while (!fs::exists(nearest, ignored) && nearest.has_relative_path()) nearest = nearest.parent_path();
  if (::access(nearest.c_str(), W_OK | X_OK) != 0) {
    config_error("run.dir", fmt::format("'{}' cannot be created or written: {}", path, std::strerror(errno)),
                 "choose a folder that you may write to");
  }
}

RunFolder::RunFolder(const std::string& path, const std::string& resume, Log& log)
    : path_(path), log_(log), checkpoints_(checkpoints_of(path)) {
  check_usable(path, resume);
  if (folder_exists(path)) lock_ = std::make_unique<Lock>(path);
}

std::string RunFolder::path_of(const char* name) const {
  return (fs::path(path_) / name).string();
}

std::string RunFolder::checkpoints_of(const std::string& path) {
  return (fs::path(path) / "checkpoints").string();
}

void RunFolder::prepare(const std::string& resolved_config) {
  create_folders(path_of("checkpoints"));
  if (lock_ == nullptr) lock_ = std::make_unique<Lock>(path_);
  token_ = fmt::format("{} {:.6f}", ::getpid(), seconds_since_epoch());
  lock_->write(token_ + "\n");
  checkpoints_.remove_leftovers();
  write_file_atomically(path_of(kResolvedName), resolved_config);
  log_.add_file(path_of(kLogName));
}

void RunFolder::open_metrics() {
  const std::string path = path_of(kMetricsName);
  std::error_code ignored;
  has_lines_ = file_exists(path) && fs::file_size(path, ignored) > 0;
  metrics_.open(path, std::ios::app);
  if (!metrics_) config_error(path, "cannot be opened for writing", "choose a run.dir that you may write to");
}

std::string RunFolder::name_for_old_metrics() const {
  std::string name = "metrics.previous.jsonl";
  for (int i = 2; fs::exists(path_of(name.c_str())); ++i) name = fmt::format("metrics.previous-{}.jsonl", i);
  return name;
}

void RunFolder::begin(const std::string& resolved_config) {
  prepare(resolved_config);
  if (file_exists(path_of(kMetricsName))) {
    // An earlier run ended before its first checkpoint: this one begins again, its metrics stay.
    const std::string old = name_for_old_metrics();
    rename_path(path_of(kMetricsName), path_of(old.c_str()));
    log_.info("the run begins again; the metrics of the one before are in {}", old);
  }
  open_metrics();
}

void RunFolder::go_on_after(const CheckpointName& name, const std::string& resolved_config) {
  prepare(resolved_config);
  const std::string metrics = path_of(kMetricsName);
  const std::vector<CheckpointName> complete = checkpoints_.complete();
  const bool branches = !complete.empty() && complete.back() > name;
  KeptLines kept;
  if (file_exists(metrics)) {
    kept = lines_up_to(metrics, name.step);
    if (branches || !kept.rest_is_later) {
      const std::string old = name_for_old_metrics();
      copy_file_atomically(metrics, path_of(old.c_str()));
      log_.warning("metrics.jsonl as it was is kept in {}", old);
    }
    if (kept.last_step < name.step) {
      log_.warning("metrics.jsonl has no lines of steps {} to {}", kept.last_step + 1, name.step);
    }
  }
  // In this order a kill in between loses nothing: the copy is there, and the newest checkpoint is `name`.
  for (const std::string& renamed : checkpoints_.supersede_after(name)) {
    log_.warning("a later checkpoint of this folder is kept as checkpoints/{}", renamed);
  }
  if (folder_exists(checkpoints_.path_of(name))) checkpoints_.point_latest_at(name);
  if (file_exists(metrics)) {
    std::error_code code;
    fs::resize_file(metrics, kept.bytes, code);
    if (code) retryable_error(metrics, "cannot be cut: " + code.message(), "run the same command again");
  }
  open_metrics();
}

void RunFolder::write_metrics(int64_t step, const std::vector<Metric>& metrics,
                              const std::vector<std::pair<std::string, std::string>>& notes) {
  nlohmann::ordered_json line;
  line["step"] = step;
  line["time"] = seconds_since_epoch();
  for (const auto& [name, value] : metrics) {
    if (std::isfinite(value)) {
      line[name] = value;
    } else {
      line[name] = nullptr;
      log_.warning("step {}: {} is {}: written as null", step, name, value);
    }
  }
  if (!has_lines_) {
    for (const auto& [name, text] : notes) line[name] = text;
  }
  has_lines_ = true;
  metrics_ << line.dump() << '\n';
  metrics_.flush();
  if (!metrics_) {
    retryable_error(path_ + "/metrics.jsonl", "cannot be written",
                    "is the disk full? the run can go on from its last checkpoint");
  }
}

void RunFolder::flush_metrics_to_disk() const {
  const std::string path = path_of(kMetricsName);
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool flushed = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int code = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!flushed) {
    retryable_error(path, fmt::format("cannot be flushed to disk: {}", std::strerror(code)),
                    "free some space, then run the same command again");
  }
}

}  // namespace lathe
