// `lathe bench exchange`: the exchanges of a step, one kind at a time between all ranks, and how much of each goes on while
// the rank computes. Values are checked against what each rank must have before anything is timed.
//
// Times are medians over repetitions of the slowest rank's: of a transfer alone, of library products alone, and of both
// started together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/core/cpu.h"
#include "lathe/mesh/communicator.h"

namespace lathe {

struct ExchangeBenchOptions {
  int64_t bytes =
      16 << 20;        // of the result, rounded up to whole numbers for every rank; as the ledger counts them
  int threads = 1;     // of the products of a rank
  int host_ranks = 1;  // ranks that share this machine's memory
  Isa isa = Isa::kAvx2;
  int repeats = 5;
};

struct ExchangeTimes {
  std::string kind;  // of the ledger
  int64_t result_bytes = 0;
  int64_t wire_bytes = 0;  // sent by a rank, by the ring formula
  double alone_s = 0;
  // Beside products that take at least twice as long. Zero on one rank, which exchanges nothing.
  double compute_s = 0;   // the products alone
  double together_s = 0;  // both
  double exposed_s = 0;   // of which the rank stood still for the transfer when its products were done
  [[nodiscard]] double bytes_per_s() const { return static_cast<double>(wire_bytes) / alone_s; }
  // Share of the transfer's time that starting both together saved. A transfer that takes a core from the products saves
  // nothing, even if it is over before they are.
  [[nodiscard]] double hidden_share() const;
  // Share of the transfer's time for which nobody waited.
  [[nodiscard]] double progress_share() const;
};

struct ExchangeBenchReport {
  ExchangeBenchOptions options;
  int ranks = 1;
  std::vector<ExchangeTimes> exchanges;
  bool verified = false;
  std::string fault;  // what differs when it is not; on all ranks
};

// All ranks call it. Not verified: not timed. Config error for sizes that do not fit into memory.
[[nodiscard]] ExchangeBenchReport bench_exchange(Communicator& communicator,
                                                 const ExchangeBenchOptions& options);

[[nodiscard]] std::string report_text(const ExchangeBenchReport& report);
[[nodiscard]] std::string report_json(const ExchangeBenchReport& report);

}  // namespace lathe
