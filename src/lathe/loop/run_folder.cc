#include "lathe/loop/run_folder.h"

#include <algorithm>
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

// The steps of checkpoint folders that are complete, ascending.
std::vector<int64_t> complete_steps(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(checkpoints, code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step_") || name.find_first_not_of("0123456789", 5) != std::string::npos) continue;
    if (file_exists((entry.path() / "COMPLETE").string())) steps.push_back(std::stoll(name.substr(5)));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string step_name(int64_t step) {
  return fmt::format("step_{:06d}", step);
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunFolder::Lock::Lock(const std::string& folder) {
  const std::string path = folder + "/.lock";
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

void RunFolder::check_usable(const std::string& path, const std::string& resume) {
  const fs::path folder(path);
  if (file_exists((folder / "checkpoints" / "latest").string()) ||
      !complete_steps(folder / "checkpoints").empty()) {
    config_error("run.dir",
                 fmt::format("'{}' holds a run with checkpoints, and this version cannot resume one", path),
                 "choose another run.dir or remove the folder");
  }
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !fs::is_directory(folder, ignored)) {
    config_error("run.dir", fmt::format("'{}' is a file, expected a folder", path), "choose another run.dir");
  }
  if (resume == "never" && folder_exists(path) && !fs::is_empty(folder, ignored)) {
    config_error("run.dir", fmt::format("'{}' is not empty, and run.resume is never", path),
                 "choose a new or empty run.dir");
  }
  // The folder itself, or the nearest one above it that is there, must be writable.
  fs::path nearest = fs::absolute(folder);
  while (!fs::exists(nearest, ignored) && nearest.has_relative_path()) nearest = nearest.parent_path();
  if (::access(nearest.c_str(), W_OK | X_OK) != 0) {
    config_error("run.dir", fmt::format("'{}' cannot be created or written: {}", path, std::strerror(errno)),
                 "choose a folder that you may write to");
  }
}

RunFolder::RunFolder(const std::string& path, const std::string& resume, const std::string& resolved_config,
                     Log& log)
    : path_(path), log_(log) {
  check_usable(path, resume);
  const fs::path folder(path);
  create_folders((folder / "checkpoints").string());
  lock_ = std::make_unique<Lock>(path);
  write_file_atomically((folder / "config.resolved.yaml").string(), resolved_config);
  log_.add_file((folder / "log.txt").string());
  const std::string metrics = (folder / "metrics.jsonl").string();
  if (file_exists(metrics)) {
    // An earlier run ended before its first checkpoint: this one begins again, its metrics stay.
    rename_path(metrics, (folder / "metrics.previous.jsonl").string());
    log_.info("the run begins again; the metrics of the one before are in metrics.previous.jsonl");
  }
  metrics_.open(metrics, std::ios::trunc);
  if (!metrics_)
    config_error(metrics, "cannot be opened for writing", "choose a run.dir that you may write to");
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
  for (const auto& [name, text] : notes) line[name] = text;
  metrics_ << line.dump() << '\n';
  metrics_.flush();
  if (!metrics_) {
    retryable_error(path_ + "/metrics.jsonl", "cannot be written",
                    "is the disk full? the run can go on from its last checkpoint");
  }
}

std::string RunFolder::save_checkpoint(int64_t step, int64_t keep,
                                       const std::function<void(const std::string& folder)>& fill) {
  const fs::path checkpoints = fs::path(path_) / "checkpoints";
  const std::string name = step_name(step);
  const std::string beside = (checkpoints / (".tmp_" + name)).string();
  std::string target = (checkpoints / name).string();
  remove_path(beside);
  create_folders(beside);
  try {
    fill(beside);
  } catch (...) {  // NOLINT: nothing half written stays, then the error goes on
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw;
  }
  write_file_atomically(beside + "/COMPLETE", "");
  remove_path(target);
  rename_path(beside, target);
  write_file_atomically((checkpoints / "latest").string(), name + "\n");

  const std::vector<int64_t> steps = complete_steps(checkpoints);
  for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < steps.size(); ++i) {
    remove_path((checkpoints / step_name(steps[i])).string());
  }
  return target;
}

}  // namespace lathe
