#include "lathe/core/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace lathe {
namespace {

namespace fs = std::filesystem;

// quota / period of one group: "max 100000" or "150000 100000" in version 2; two files in version 1, -1 for none.
double limit_of_group(const fs::path& group) {
  double quota = 0;
  double period = 0;
  std::ifstream both(group / "cpu.max");
  if (!(both >> quota >> period)) {
    std::ifstream quota_file(group / "cpu.cfs_quota_us");
    std::ifstream period_file(group / "cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return 0;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

double cgroup_cpu_limit(const std::string& root, const std::string& membership) {
  double limit = 0;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // id:controllers:/path, version 2 names no controllers
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version_2 = controllers == ",,";
    if (!version_2 && controllers.find(",cpu,") == std::string::npos) continue;
    const fs::path mounted = version_2 ? fs::path(root) : fs::path(root) / "cpu";
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (;; group = group.parent_path()) {
      const double here = limit_of_group(mounted / group);
      if (here > 0) limit = limit > 0 ? std::min(limit, here) : here;
      if (group.empty()) break;
    }
  }
  return limit;
}

}  // namespace lathe
