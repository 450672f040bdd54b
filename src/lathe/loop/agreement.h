// What all ranks of a run must have the same: told by the leading rank, or compared. Every rank calls these at the same
// place of its host thread; on one rank they exchange nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lathe/core/cpu.h"
#include "lathe/mesh/communicator.h"

namespace lathe {

// What the loop's numbers travel as.
[[nodiscard]] Exchange run_exchange();
// The text of rank `rank` (those of other ranks do not matter), on all ranks.
[[nodiscard]] std::string text_of_rank(Communicator& communicator, int rank, const std::string& own);
// The leading rank's texts (those of other ranks do not matter), on all ranks.
[[nodiscard]] std::vector<std::string> leaders_texts(Communicator& communicator,
                                                     const std::vector<std::string>& own);
// By rank.
[[nodiscard]] std::vector<double> values_of_ranks(Communicator& communicator, double own);
// The first rank whose value is not that of rank 0; -1: there is none.
[[nodiscard]] int first_other_rank(std::span<const double> values);

// Sums up what ranks compare: equal for equal calls, and else other in all likelihood.
class Digest {
 public:
  void add(uint64_t value);
  void add(int64_t value) { add(static_cast<uint64_t>(value)); }
  void add(double value);  // any NaN is the same
  void add(std::string_view text);
  template <typename T>
  void add_all(std::span<const T> values) {
    add(static_cast<uint64_t>(values.size()));
    for (const T& value : values) {
      if constexpr (std::is_floating_point_v<T>) {
        add(static_cast<double>(value));
      } else {
        add(static_cast<int64_t>(value));
      }
    }
  }
  // A whole number below 2^52.
  [[nodiscard]] double value() const;

 private:
  uint64_t state_ = 0x9E3779B97F4A7C15U;
};

// Data error of all ranks: one of them has read something else in `file` than rank 0, by its digest.
void check_same_contents(Communicator& communicator, double digest, const std::string& file);

// The instruction set of a rank's processor that it would use alone.
struct RankIsa {
  Isa isa = Isa::kAvx2;
  bool by_hand = false;  // LATHE_ISA says so
};
// The one that all ranks use: the least, so that they compute the same bits. Config error of all: LATHE_ISA asks a rank for more.
[[nodiscard]] Isa common_isa(std::span<const RankIsa> ranks);

}  // namespace lathe
