#include "lathe/loop/memory_report.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace lathe {
namespace {

constexpr size_t kNames = 5;  // of each kind

// "layers.12.q_proj m" -> "layers.*.q_proj m"
std::string without_numbers(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool starts_part = i == 0 || name[i - 1] == '.';
    size_t end = i;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    if (starts_part && end > i && (end == name.size() || name[end] == '.')) {
      out += '*';
      i = end - 1;
    } else {
      out += name[i];
    }
  }
  return out;
}

struct Sum {
  int64_t bytes = 0;
  int64_t count = 0;
};

std::string line_of(MemoryKind kind, int64_t total, const std::vector<LiveTensor>& live) {
  std::map<std::string, Sum> sums;
  for (const LiveTensor& tensor : live) {
    if (tensor.kind != kind) continue;
    Sum& sum = sums[without_numbers(tensor.name)];
    sum.bytes += tensor.bytes;
    ++sum.count;
  }
  std::vector<std::pair<std::string, Sum>> sorted(sums.begin(), sums.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string names;
  for (size_t i = 0; i < std::min(kNames, sorted.size()); ++i) {
    const auto& [name, sum] = sorted[i];
    names += fmt::format("{}{} {}{}", i == 0 ? "" : ", ", name, bytes_text(sum.bytes),
                         sum.count > 1 ? fmt::format(" ({} x)", sum.count) : "");
  }
  if (sorted.size() > kNames) names += fmt::format(", {} more names", sorted.size() - kNames);
  return fmt::format("{} {}: {}", bytes_text(total), memory_kind_name(kind), names);
}

}  // namespace

RehearsedPeak rehearse_largest(const Engine& engine, const std::vector<MicroBatch>& micro_batches) {
  RehearsedPeak largest;
  for (const auto size : {&MicroBatch::tokens, &MicroBatch::scored}) {
    const auto most = std::max_element(micro_batches.begin(), micro_batches.end(),
                                       [size](const MicroBatch& a, const MicroBatch& b) {
                                         return std::invoke(size, a) < std::invoke(size, b);
                                       });
    RehearsedPeak peak = engine.rehearse(*most, engine.kept_layers());
    if (peak.use.total() > largest.use.total()) largest = std::move(peak);
  }
  return largest;
}

std::vector<std::string> memory_report(const MemoryUse& use, const std::vector<LiveTensor>& live) {
  std::vector<std::string> lines;
  for (int i = 0; i < kMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    if (use.of(kind) > 0) lines.push_back(line_of(kind, use.of(kind), live));
  }
  return lines;
}

}  // namespace lathe
