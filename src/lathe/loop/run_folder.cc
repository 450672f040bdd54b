#include "lathe/loop/run_folder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "lathe/core/error.h"

namespace lathe {
namespace fs = std::filesystem;
namespace {

void write_text(const fs::path& path, const std::string& text) {
  const fs::path beside = path.string() + ".tmp";
  {
    std::ofstream out(beside, std::ios::binary);
    out << text;
    out.flush();
    if (!out) config_error(path.string(), "cannot be written", "check free space and permissions");
  }
  fs::rename(beside, path);
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunFolder::RunFolder(const std::string& path, const std::string& resolved_config, Log& log)
    : path_(path), log_(log) {
  const fs::path folder(path);
  std::error_code error;
  if (fs::exists(folder / "checkpoints" / "latest", error)) {
    config_error("run.dir",
                 fmt::format("'{}' holds a run with checkpoints, and this version cannot resume one", path),
                 "choose another run.dir or remove the folder");
  }
  fs::create_directories(folder / "checkpoints", error);
  if (error) {
    config_error("run.dir", fmt::format("'{}' cannot be created: {}", path, error.message()),
                 "choose a folder that you may write to");
  }
  write_text(folder / "config.resolved.yaml", resolved_config);
  log_.add_file((folder / "log.txt").string());
  metrics_.open(folder / "metrics.jsonl", std::ios::trunc);
  if (!metrics_) {
    config_error((folder / "metrics.jsonl").string(), "cannot be opened for writing",
                 "choose a run.dir that you may write to");
  }
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
  const std::string name = fmt::format("step_{:06d}", step);
  const fs::path beside = checkpoints / (".tmp_" + name);
  const fs::path target = checkpoints / name;
  fs::remove_all(beside);
  fs::create_directories(beside);
  try {
    fill(beside.string());
  } catch (...) {  // NOLINT: nothing half written stays, then the error goes on
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw;
  }
  write_text(beside / "COMPLETE", "");
  fs::remove_all(target);
  fs::rename(beside, target);
  write_text(checkpoints / "latest", name + "\n");

  std::vector<fs::path> complete;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    if (entry.is_directory() && fs::exists(entry.path() / "COMPLETE")) complete.push_back(entry.path());
  }
  std::sort(complete.begin(), complete.end());
  for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < complete.size(); ++i)
    fs::remove_all(complete[i]);
  return target.string();
}

}  // namespace lathe
