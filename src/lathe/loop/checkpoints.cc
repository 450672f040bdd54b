#include "lathe/loop/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include <sys/statvfs.h>

#include "lathe/core/error.h"
#include "lathe/core/memory.h"
#include "lathe/io/files.h"

namespace lathe {
namespace fs = std::filesystem;
namespace {

constexpr const char* kComplete = "COMPLETE";
constexpr const char* kTemporary = ".tmp_";
constexpr const char* kTrash = ".trash_";
constexpr const char* kSuperseded = "superseded_";

// Digits alone, at least `width` of them.
std::optional<int64_t> number_of(std::string_view text, size_t width) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  if (text.size() < width || text.find_first_not_of("0123456789") != std::string_view::npos) return {};
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end) return {};
  return value;
}

}  // namespace

std::string CheckpointName::text() const {
  return micro_batches == 0 ? fmt::format("step_{:06d}", step)
                            : fmt::format("step_{:06d}-mb{:04d}", step, micro_batches);
}

std::optional<CheckpointName> parse_checkpoint_name(const std::string& folder_name) {
  constexpr std::string_view kStep = "step_";
  constexpr std::string_view kMicroBatch = "-mb";
  std::string_view rest(folder_name);
  if (rest.substr(0, kStep.size()) != kStep) return {};
  rest.remove_prefix(kStep.size());
  const size_t dash = rest.find(kMicroBatch);
  const auto step = number_of(rest.substr(0, dash), 6);
  if (!step.has_value()) return {};
  if (dash == std::string_view::npos) return CheckpointName{.step = *step, .micro_batches = 0};
  const auto micro_batches = number_of(rest.substr(dash + kMicroBatch.size()), 4);
  if (!micro_batches.has_value() || *micro_batches == 0) return {};
  return CheckpointName{.step = *step, .micro_batches = *micro_batches};
}

std::vector<CheckpointName> Checkpoints::complete() const {
  std::vector<CheckpointName> names;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder_, code)) {
    const auto name = parse_checkpoint_name(entry.path().filename().string());
    if (name.has_value() && file_exists((entry.path() / kComplete).string())) names.push_back(*name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string Checkpoints::path_of(const CheckpointName& name) const {
  return (fs::path(folder_) / name.text()).string();
}

std::string Checkpoints::path_of_latest() const {
  return (fs::path(folder_) / "latest").string();
}

std::string Checkpoints::unfinished_path_of(const CheckpointName& name) const {
  return (fs::path(folder_) / (kTemporary + name.text())).string();
}

std::string Checkpoints::write(const CheckpointName& name, int64_t keep, uint64_t expected_bytes,
                               const std::function<void(const std::string& folder)>& fill) const {
  const std::string beside = unfinished_path_of(name);
  std::string target = path_of(name);
  remove_path(beside);
  check_free_space(folder_, expected_bytes);
  try {
    create_folders(beside);
    fill(beside);
    write_file_atomically((fs::path(beside) / kComplete).string(), "");
  } catch (...) {  // NOLINT: nothing half written stays, then the error goes on
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw;
  }
  if (fs::exists(target)) discard(name.text());
  rename_path(beside, target);
  sync_folder(folder_);
  point_latest_at(name);
  remove_old(name, keep);
  return target;
}

void Checkpoints::point_latest_at(const CheckpointName& name) const {
  check_plain_file(path_of_latest());
  write_file_atomically(path_of_latest(), name.text() + "\n");
}

void Checkpoints::remove_old(const CheckpointName& newest, int64_t keep) const {
  std::vector<CheckpointName> names = complete();
  int64_t full =
      std::count_if(names.begin(), names.end(), [](const auto& n) { return n.micro_batches == 0; });
  for (const CheckpointName& name : names) {
    if (name.micro_batches != 0) {
      if (newest.micro_batches == 0 && name < newest) discard(name.text());
    } else if (keep > 0 && full > keep && name < newest) {
      discard(name.text());
      --full;
    }
  }
}

void Checkpoints::discard(const std::string& name) const {
  const std::string trash = (fs::path(folder_) / (kTrash + name)).string();
  remove_path(trash);
  rename_path((fs::path(folder_) / name).string(), trash);
  remove_path(trash);
}

void Checkpoints::remove_leftovers() const {
  std::vector<std::string> leftovers;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder_, code)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTemporary) || name.starts_with(kTrash)) leftovers.push_back(entry.path().string());
  }
  for (const std::string& path : leftovers) remove_path(path);
}

std::vector<std::string> Checkpoints::supersede_after(const CheckpointName& name) const {
  std::vector<std::string> renamed;
  for (const CheckpointName& later : complete()) {
    if (later <= name) continue;
    std::string target = kSuperseded + later.text();
    for (int i = 2; fs::exists(fs::path(folder_) / target); ++i) {
      target = fmt::format("{}{}.{}", kSuperseded, later.text(), i);
    }
    rename_path(path_of(later), (fs::path(folder_) / target).string());
    renamed.push_back(target);
  }
  return renamed;
}

void check_free_space(const std::string& folder, uint64_t bytes) {
  fs::path nearest = fs::absolute(folder);
  std::error_code ignored;
  while (!fs::exists(nearest, ignored) && nearest.has_relative_path()) nearest = nearest.parent_path();
  struct statvfs status {};
  // Some file systems do not say how large they are.
  if (::statvfs(nearest.c_str(), &status) != 0 || status.f_blocks == 0) return;
  const uint64_t free_bytes = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  if (free_bytes >= bytes) return;
  retryable_error(
      folder,
      fmt::format("a checkpoint needs {}, and {} are free", bytes_text(static_cast<int64_t>(bytes)),
                  bytes_text(static_cast<int64_t>(free_bytes))),
      "free some space, then run the same command again");
}

}  // namespace lathe
