// What the control groups of this process allow (containers limit processors by time, and memory). Of every group from
// the process's own up to the root the tightest limit counts. root: where groups are mounted (/sys/fs/cgroup);
// membership: what /proc/self/cgroup says. Versions 2 and 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lathe {

// Processor seconds a second.
[[nodiscard]] std::optional<double> cgroup_cpu_limit(const std::string& root, const std::string& membership);
// Bytes that may still be used; memory that only caches files counts as free.
[[nodiscard]] std::optional<int64_t> cgroup_memory_left(const std::string& root,
                                                        const std::string& membership);

}  // namespace lathe
