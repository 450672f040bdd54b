#include <algorithm>
#include <cctype>
#include <filesystem>

#include <glob.h>

#include "lathe/core/error.h"
#include "lathe/data/rollouts.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

bool digit(char c) {
  return c >= '0' && c <= '9';
}

size_t number_end(const std::string& s, size_t i) {
  while (i < s.size() && digit(s[i])) ++i;
  return i;
}

}  // namespace

// step_2 before step_10.
bool rollout_file_before(const std::string& a, const std::string& b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const size_t a_end = number_end(a, i);
    const size_t b_end = number_end(b, j);
    while (i + 1 < a_end && a[i] == '0') ++i;
    while (j + 1 < b_end && b[j] == '0') ++j;
    if (a_end - i != b_end - j) return a_end - i < b_end - j;
    const int order = a.compare(i, a_end - i, b, j, b_end - j);
    if (order != 0) return order < 0;
    i = a_end;
    j = b_end;
  }
  return a.size() - i != b.size() - j ? a.size() - i < b.size() - j : a < b;
}

namespace {

bool is_step_file(const std::string& name) {
  if (!name.starts_with("step_")) return false;
  const std::string stem = name.substr(0, name.ends_with(".gz") ? name.size() - 3 : name.size());
  return stem.ends_with(".jsonl");
}

std::vector<std::string> files_of_folder(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (is_step_file(at->path().filename().string())) files.push_back(at->path().string());
  }
  if (error) data_error(folder, fmt::format("cannot be read: {}", error.message()));
  std::sort(files.begin(), files.end(), rollout_file_before);
  for (size_t i = 1; i < files.size(); ++i) {
    if (files[i] == files[i - 1] + ".gz") {
      data_error(files[i], fmt::format("is there beside {}, expected one file a step", files[i - 1]),
                 "remove one of the two");
    }
  }
  return files;
}

std::vector<std::string> files_of_glob(const std::string& pattern) {
  std::vector<std::string> files;
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      std::error_code ignored;
      if (!fs::is_directory(found.gl_pathv[i], ignored)) files.emplace_back(found.gl_pathv[i]);
    }
  }
  globfree(&found);
  std::sort(files.begin(), files.end(), rollout_file_before);
  return files;
}

bool has_wildcard(const std::string& pattern) {
  return pattern.find_first_of("*?[") != std::string::npos;
}

bool is_being_written(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  return name.starts_with('.') || name.ends_with(".tmp") || name.ends_with(".partial");
}

std::vector<std::string> files_of(const std::string& pattern) {
  std::error_code error;
  const fs::file_status status = fs::status(pattern, error);
  if (fs::is_directory(status)) return files_of_folder(pattern);
  if (fs::exists(status)) return {pattern};
  return has_wildcard(pattern) ? files_of_glob(pattern) : std::vector<std::string>{};
}

}  // namespace

std::vector<std::string> rollout_files(const std::string& pattern) {
  std::vector<std::string> files = files_of(pattern);
  if (!files.empty()) return files;
  std::error_code ignored;
  if (fs::is_directory(pattern, ignored)) {
    data_error(
        pattern, "no step_*.jsonl or step_*.jsonl.gz in this folder",
        "name the files step_1.jsonl, step_2.jsonl and so on, or give a glob such as rollouts/*.jsonl");
  }
  if (has_wildcard(pattern))
    data_error(pattern, "no file matches",
               "check the pattern; paths in a run file are relative to its folder");
  data_error(pattern, "no such file or folder", "paths in a run file are relative to its folder");
}

std::vector<std::string> rollout_files_so_far(const std::string& pattern) {
  std::vector<std::string> files = files_of(pattern);
  std::erase_if(files, is_being_written);
  return files;
}

}  // namespace lathe
