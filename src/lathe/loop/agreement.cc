#include "lathe/loop/agreement.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "lathe/core/error.h"
#include "lathe/loop/rank_errors.h"

namespace lathe {

Exchange run_exchange() {
  return {.axes = kAxisAll, .phase = Phase::kPrepare, .tensor = "run", .channel = Channel::kHost};
}

std::string text_of_rank(Communicator& communicator, int rank, const std::string& own) {
  if (communicator.mesh().size() == 1) return own;
  const bool speaks = communicator.rank() == rank;
  double length = speaks ? static_cast<double>(own.size()) : 0;
  communicator.all_reduce_max(run_exchange(), std::span(&length, 1));
  std::vector<double> codes(static_cast<size_t>(length), 0.0);
  if (speaks)
    std::transform(own.begin(), own.end(), codes.begin(), [](char c) { return static_cast<double>(c); });
  communicator.all_reduce_sum(run_exchange(), codes);
  std::string text(codes.size(), ' ');
  std::transform(codes.begin(), codes.end(), text.begin(),
                 [](double code) { return static_cast<char>(code); });
  return text;
}

// Each with its length in front.
std::vector<std::string> leaders_texts(Communicator& communicator, const std::vector<std::string>& own) {
  if (communicator.mesh().size() == 1) return own;
  std::string joined;
  for (const std::string& text : own) joined += std::to_string(text.size()) + ":" + text;
  joined = text_of_rank(communicator, 0, joined);
  std::vector<std::string> out;
  for (size_t at = 0; at < joined.size();) {
    const size_t colon = joined.find(':', at);
    const size_t size = std::stoul(joined.substr(at, colon - at));
    out.push_back(joined.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return out;
}

std::vector<double> values_of_ranks(Communicator& communicator, double own) {
  std::vector<double> all(static_cast<size_t>(communicator.mesh().size()), 0.0);
  all[static_cast<size_t>(communicator.rank())] = own;
  communicator.all_reduce_sum(run_exchange(), all);
  return all;
}

int first_other_rank(std::span<const double> values) {
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] != values[0]) return static_cast<int>(rank);
  }
  return -1;
}

void Digest::add(uint64_t value) {
  constexpr uint64_t kOdd = 0xD6E8FEB86659FD93U;
  state_ = (state_ ^ value) * kOdd;
  state_ ^= state_ >> 32U;
}

void Digest::add(double value) {
  add(std::bit_cast<uint64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value));
}

void Digest::add(std::string_view text) {
  add(static_cast<uint64_t>(text.size()));
  for (const char c : text) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
}

double Digest::value() const {
  constexpr uint64_t kBelow = uint64_t{1} << 52U;
  return static_cast<double>((state_ * 0xD6E8FEB86659FD93U >> 8U) % kBelow);
}

void check_same_contents(Communicator& communicator, double digest, const std::string& file) {
  const int rank = first_other_rank(values_of_ranks(communicator, digest));
  if (rank < 0) return;
  throw AgreedError(
      ErrorKind::kData, file, fmt::format("rank {} reads other contents there than rank 0", rank),
      "put the rollouts on a file system that all ranks share, and do not change files while they are "
      "used; then the same command goes on");
}

Isa common_isa(std::span<const RankIsa> ranks) {
  const auto less = [](const RankIsa& a, const RankIsa& b) { return a.isa < b.isa; };
  const auto least = std::min_element(ranks.begin(), ranks.end(), less);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].by_hand || ranks[rank].isa == least->isa) continue;
    throw AgreedError(ErrorKind::kConfig, "LATHE_ISA",
                      fmt::format("rank {} is to use {}, and rank {} uses {}; all ranks use the same", rank,
                                  isa_name(ranks[rank].isa), least - ranks.begin(), isa_name(least->isa)),
                      fmt::format("set LATHE_ISA to {} on all ranks, or on none", isa_name(least->isa)));
  }
  return least->isa;
}

}  // namespace lathe
