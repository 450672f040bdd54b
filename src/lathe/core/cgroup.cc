#include "lathe/core/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

namespace lathe {
namespace {

namespace fs = std::filesystem;

// The folders of the groups that limit this process, for a controller of version 1 ("cpu") and for version 2.
std::vector<fs::path> groups_of(const std::string& root, const std::string& membership,
                                const std::string& controller) {
  std::vector<fs::path> groups;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // id:controllers:/path, version 2 names no controllers
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version_2 = controllers == ",,";
    if (!version_2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const fs::path mounted = version_2 ? fs::path(root) : fs::path(root) / controller;
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (; !group.empty(); group = group.parent_path()) groups.push_back(mounted / group);
    groups.push_back(mounted);
  }
  return groups;
}

template <typename Number>
std::optional<Number> number_in(const fs::path& path) {
  std::ifstream file(path);
  Number value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// quota / period: "max 100000" or "150000 100000" in version 2; two files in version 1, -1 for none.
std::optional<double> processors_of(const fs::path& group) {
  double quota = 0;
  double period = 0;
  std::ifstream both(group / "cpu.max");
  if (!(both >> quota >> period)) {
    quota = number_in<double>(group / "cpu.cfs_quota_us").value_or(0);
    period = number_in<double>(group / "cpu.cfs_period_us").value_or(0);
  }
  if (quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

int64_t cached_bytes(const fs::path& group, const std::string& prefix) {
  std::ifstream file(group / "memory.stat");
  int64_t cached = 0;
  std::string key;
  for (int64_t value = 0; file >> key >> value;) {
    if (key == prefix + "inactive_file" || key == prefix + "active_file") cached += value;
  }
  return cached;
}

std::optional<int64_t> memory_left_of(const fs::path& group) {
  auto limit = number_in<int64_t>(group / "memory.max");  // "max" is no number
  auto used = number_in<int64_t>(group / "memory.current");
  std::string prefix;
  if (!used) {
    limit = number_in<int64_t>(group / "memory.limit_in_bytes");
    used = number_in<int64_t>(group / "memory.usage_in_bytes");
    prefix = "total_";  // without it version 1 leaves the groups below out
  }
  if (!limit || !used) return std::nullopt;
  return std::max<int64_t>(*limit - std::max<int64_t>(*used - cached_bytes(group, prefix), 0), 0);
}

template <typename Number>
void keep_smaller(std::optional<Number>& least, const std::optional<Number>& value) {
  if (value && (!least || *value < *least)) least = value;
}

}  // namespace

std::optional<double> cgroup_cpu_limit(const std::string& root, const std::string& membership) {
  std::optional<double> least;
  for (const fs::path& group : groups_of(root, membership, "cpu")) keep_smaller(least, processors_of(group));
  return least;
}

std::optional<int64_t> cgroup_memory_left(const std::string& root, const std::string& membership) {
  std::optional<int64_t> least;
  for (const fs::path& group : groups_of(root, membership, "memory")) {
    keep_smaller(least, memory_left_of(group));
  }
  return least;
}

}  // namespace lathe
