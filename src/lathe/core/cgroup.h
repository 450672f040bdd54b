// What the control groups of this process allow (containers limit processors by time, not by number).
#pragma once

#include <string>

namespace lathe {

// Processor seconds a second: the tightest quota from the process's own group up to the root, 0 where there is none.
// root: where groups are mounted (/sys/fs/cgroup); membership: what /proc/self/cgroup says. Versions 2 and 1.
[[nodiscard]] double cgroup_cpu_limit(const std::string& root, const std::string& membership);

}  // namespace lathe
