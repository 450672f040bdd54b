#include "lathe/mesh/ledger.h"

namespace lathe {

const char* collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kSendRecv:
      return "send_recv";
  }
  return "?";
}

std::string axes_text(AxisSet axes) {
  std::string out;
  const auto add = [&](AxisSet bit, const char* name) {
    if ((axes & bit) == 0) return;
    if (!out.empty()) out += ',';
    out += name;
  };
  add(kAxisData, "data");
  add(kAxisFsdp, "fsdp");
  add(kAxisContext, "context");
  add(kAxisExpert, "expert");
  return out;
}

void Ledger::add(const LedgerEntry& entry) {
  const std::lock_guard lock(mutex_);
  LedgerEntry& total = totals_[{entry.phase, entry.tensor, entry.kind, entry.axes}];
  total.phase = entry.phase;
  total.tensor = entry.tensor;
  total.kind = entry.kind;
  total.axes = entry.axes;
  total.count += entry.count;
  total.result_bytes += entry.result_bytes;
  total.wire_bytes += entry.wire_bytes;
  total.wait_s += entry.wait_s;
  total.exposed_s += entry.exposed_s;
}

void Ledger::reset() {
  const std::lock_guard lock(mutex_);
  totals_.clear();
}

std::vector<LedgerEntry> Ledger::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<LedgerEntry> out;
  for (const auto& [key, entry] : totals_) out.push_back(entry);
  return out;
}

}  // namespace lathe
