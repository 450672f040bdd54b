#include "lathe/bench/exchange.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>

#include "lathe/bench/measure.h"
#include "lathe/core/error.h"
#include "lathe/core/memory.h"
#include "lathe/kernels/onednn_gemm.h"
#include "lathe/mesh/ledger.h"

namespace lathe {
namespace {

constexpr int64_t kExtent = 256;               // of a product: short beside a transfer
constexpr double kComputeTimes = 2;            // at least as long as so many transfers
constexpr double kLeastComputeSeconds = 0.05;  // many time slices of the scheduler

Exchange exchange() {
  return {.axes = kAxisAll, .phase = Phase::kForward, .tensor = "bench", .channel = Channel::kDevice};
}

// Element i of what `rank` sends: no two ranks alike, and sums that round, so that their order shows.
float sent(int rank, int64_t i) {
  return static_cast<float>((rank + 1) * 101 + i * 7 % 101) / 7.0F;
}

float sum_sent(int ranks, int64_t i) {
  float sum = sent(0, i);
  for (int rank = 1; rank < ranks; ++rank) sum += sent(rank, i);
  return sum;
}

View view_of(std::vector<float>& values, int64_t begin, int64_t count) {
  return {reinterpret_cast<std::byte*>(values.data() + begin), DType::kF32, {count}};
}

// One kind of exchange over buffers that all kinds share.
struct Case {
  CollectiveKind kind;
  int64_t result_bytes;
  int64_t results;  // elements of `to` that the exchange writes
  std::function<Request()> start;
  std::function<float(int64_t)> expected;  // element of `to`
  bool in_place = false;                   // `to` holds what is sent
};

class Bench {
 public:
  Bench(Communicator& communicator, const ExchangeBenchOptions& options)
      : communicator_(communicator),
        options_(options),
        ranks_(communicator.mesh().size()),
        per_rank_((options.bytes + 4 * ranks_ - 1) / (4 * ranks_)),
        all_(per_rank_ * ranks_),
        product_({.m = kExtent, .n = kExtent, .k = kExtent, .threads = options.threads}),
        a_(kExtent * kExtent, 1.0F),
        b_(kExtent * kExtent, 1.0F),
        c_(kExtent * kExtent, 0.0F) {
    check_fits();
    from_.resize(static_cast<size_t>(all_));
    to_.resize(static_cast<size_t>(all_));
    for (int64_t i = 0; i < all_; ++i) from_[static_cast<size_t>(i)] = sent(communicator.rank(), i);
  }

  ExchangeBenchReport run() {
    ExchangeBenchReport report;
    report.options = options_;
    report.ranks = ranks_;
    const std::vector<Case> cases = this->cases();
    for (const Case& one : cases) {
      report.fault = difference(one);
      if (!report.fault.empty()) return report;
    }
    report.verified = true;
    for (const Case& one : cases) report.exchanges.push_back(times_of(one));
    return report;
  }

 private:
  void check_fits() const {
    constexpr int64_t kBuffers = 3;  // sent, received, and parts that wait to be added
    const int64_t needed = kBuffers * 4 * all_;
    const int64_t available = available_memory_bytes() / options_.host_ranks;
    if (needed <= available) return;
    config_error(
        "--bytes",
        fmt::format("{} for a result need {} a rank, but {} of memory are free for each of {}",
                    bytes_text(4 * all_), bytes_text(needed), bytes_text(available), options_.host_ranks),
        "make it smaller");
  }

  std::vector<Case> cases() {
    const int rank = communicator_.rank();
    const int next = (rank + 1) % ranks_;
    const int before = (rank + ranks_ - 1) % ranks_;
    const int64_t n = per_rank_;
    const auto from = [this](int64_t count) { return view_of(from_, 0, count); };
    const auto to = [this](int64_t count) { return view_of(to_, 0, count); };
    std::vector<Case> out;
    out.push_back({.kind = CollectiveKind::kAllGather,
                   .result_bytes = 4 * all_,
                   .results = all_,
                   .start =
                       [=, this] {
                         const GatherPiece piece{from(n), to(all_)};
                         return communicator_.start_all_gather(exchange(), {&piece, 1});
                       },
                   .expected = [n](int64_t i) { return sent(static_cast<int>(i / n), i % n); }});
    out.push_back({.kind = CollectiveKind::kReduceScatter,
                   .result_bytes = 4 * all_,
                   .results = n,
                   .start =
                       [=, this] {
                         const ReducePiece piece{from(all_), to(n)};
                         return communicator_.start_reduce_scatter(exchange(), {&piece, 1});
                       },
                   .expected = [=, this](int64_t i) { return sum_sent(ranks_, rank * n + i); }});
    out.push_back({.kind = CollectiveKind::kAllReduce,
                   .result_bytes = 4 * all_,
                   .results = all_,
                   .start = [=, this] { return communicator_.start_all_reduce(exchange(), to(all_)); },
                   .expected = [this](int64_t i) { return sum_sent(ranks_, i); },
                   .in_place = true});
    out.push_back(
        {.kind = CollectiveKind::kAllToAll,
         .result_bytes = 4 * all_,
         .results = all_,
         .start = [=, this] { return communicator_.start_all_to_all(exchange(), from(all_), to(all_)); },
         .expected = [=](int64_t i) { return sent(static_cast<int>(i / n), rank * n + i % n); }});
    out.push_back({.kind = CollectiveKind::kSendRecv,
                   .result_bytes = 4 * all_,
                   .results = all_,
                   .start =
                       [=, this] {
                         const SendPiece send{next, from(all_)};
                         const ReceivePiece receive{before, to(all_)};
                         return communicator_.start_send_recv(exchange(), {&send, 1}, {&receive, 1});
                       },
                   .expected = [before](int64_t i) { return sent(before, i); }});
    return out;
  }

  // All ranks begin together; `to` is as the exchange wants it.
  void prepare(const Case& one) {
    if (one.in_place) std::copy(from_.begin(), from_.end(), to_.begin());
    communicator_.barrier(Channel::kDevice);
  }

  void compute(int64_t products) {
    for (int64_t i = 0; i < products; ++i) product_.run(a_.data(), b_.data(), c_.data());
  }

  // Of the slowest rank; all ranks ask at the same place.
  [[nodiscard]] double slowest(double value) const {
    communicator_.all_reduce_max(exchange(), std::span(&value, 1));
    return value;
  }

  // Empty if every rank has what it must have, else what the first of them has instead.
  std::string difference(const Case& one) {
    std::fill(to_.begin(), to_.end(), std::nanf(""));
    prepare(one);
    one.start().wait();
    int64_t wrong = 0;
    while (wrong < one.results && to_[static_cast<size_t>(wrong)] == one.expected(wrong)) ++wrong;
    const bool differs = wrong < one.results;
    const double first = -slowest(differs ? -communicator_.rank() : -ranks_);
    if (first >= ranks_) return "";
    std::array<double, 3> found{};
    if (communicator_.rank() == static_cast<int>(first)) {
      found = {static_cast<double>(wrong), static_cast<double>(to_[static_cast<size_t>(wrong)]),
               static_cast<double>(one.expected(wrong))};
    }
    communicator_.all_reduce_sum(exchange(), found);
    return fmt::format("{}: element {:.0f} of rank {:.0f} is {:g}, expected {:g}", collective_name(one.kind),
                       found[0], first, found[1], found[2]);
  }

  double time_alone(const Case& one) {
    prepare(one);
    return slowest(seconds_of([&] { one.start().wait(); }));
  }

  ExchangeTimes times_of(const Case& one) {
    ExchangeTimes times;
    times.kind = collective_name(one.kind);
    times.result_bytes = one.result_bytes;
    times.wire_bytes = wire_bytes_of(one);
    std::vector<double> alone;
    for (int i = 0; i < options_.repeats; ++i) alone.push_back(time_alone(one));
    times.alone_s = median(alone);
    if (ranks_ == 1) return times;
    const int64_t products = products_beside(times.alone_s);
    std::vector<double> computed;
    std::vector<double> together;
    std::vector<double> exposed;
    for (int i = 0; i < options_.repeats; ++i) {
      communicator_.barrier(Channel::kDevice);
      computed.push_back(slowest(seconds_of([&] { compute(products); })));
      prepare(one);
      double waited = 0;
      together.push_back(slowest(seconds_of([&] {
        Request request = one.start();
        compute(products);
        waited = seconds_of([&] { request.wait(); });
      })));
      exposed.push_back(slowest(waited));
    }
    times.compute_s = median(computed);
    times.together_s = median(together);
    times.exposed_s = median(exposed);
    return times;
  }

  int64_t wire_bytes_of(const Case& one) {
    Ledger* ledger = communicator_.ledger();
    if (ledger == nullptr || ranks_ == 1) return 0;
    prepare(one);
    ledger->reset();
    one.start().wait();
    for (const LedgerEntry& entry : ledger->entries()) {
      if (entry.kind == one.kind) return entry.wire_bytes;
    }
    return 0;
  }

  // As many for every rank, timed while all ranks compute.
  int64_t products_beside(double transfer_s) {
    constexpr int64_t kTried = 20;
    compute(kTried);
    communicator_.barrier(Channel::kDevice);
    const double product_s = slowest(seconds_of([&] { compute(kTried); })) / kTried;
    return static_cast<int64_t>(
        std::ceil(std::max(kComputeTimes * transfer_s, kLeastComputeSeconds) / product_s));
  }

  Communicator& communicator_;
  const ExchangeBenchOptions options_;
  const int ranks_;
  const int64_t per_rank_;
  const int64_t all_;
  std::vector<float> from_;
  std::vector<float> to_;
  LibraryGemm product_;
  std::vector<float> a_, b_, c_;
};

}  // namespace

double ExchangeTimes::hidden_share() const {
  return std::clamp((alone_s + compute_s - together_s) / alone_s, 0.0, 1.0);
}

double ExchangeTimes::progress_share() const {
  return std::clamp(1 - exposed_s / alone_s, 0.0, 1.0);
}

ExchangeBenchReport bench_exchange(Communicator& communicator, const ExchangeBenchOptions& options) {
  return Bench(communicator, options).run();
}

}  // namespace lathe
