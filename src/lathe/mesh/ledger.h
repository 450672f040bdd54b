// What was sent, how much and how long it was waited for: totals by (phase, tensor, kind, axes).
// result_bytes: of the whole result of a gather, of the whole input of a reduction, of what a rank receives in an all-to-all
// or a point-to-point exchange. wire_bytes, sent by one rank by the ring formula: gather and reduce-scatter (P-1)/P of the
// result, all-reduce twice that; all-to-all and point-to-point what goes to other ranks.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "lathe/mesh/communicator.h"

namespace lathe {

enum class CollectiveKind : uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kSendRecv };
[[nodiscard]] const char* collective_name(CollectiveKind kind);
// "fsdp,context"
[[nodiscard]] std::string axes_text(AxisSet axes);

struct LedgerEntry {
  Phase phase = Phase::kForward;
  std::string tensor;
  CollectiveKind kind = CollectiveKind::kAllGather;
  AxisSet axes = 0;
  int64_t count = 0;
  int64_t result_bytes = 0;
  int64_t wire_bytes = 0;
  double wait_s = 0;     // from start to the end of the exchange
  double exposed_s = 0;  // that somebody stood still for it
};

// Thread-safe.
class Ledger {
 public:
  void add(const LedgerEntry& entry);  // merged into the total of its kind
  void reset();
  [[nodiscard]] std::vector<LedgerEntry> entries() const;  // by phase, tensor, kind, axes

 private:
  using Key = std::tuple<Phase, std::string, CollectiveKind, AxisSet>;
  mutable std::mutex mutex_;
  std::map<Key, LedgerEntry> totals_;
};

}  // namespace lathe
