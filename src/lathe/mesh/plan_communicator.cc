#include "lathe/mesh/plan_communicator.h"

#include <utility>
#include <vector>

#include "lathe/mesh/collectives.h"
#include "lathe/mesh/ledger.h"

namespace lathe {
namespace {

class PlannedWork final : public Request::Work {
 public:
  PlannedWork(VirtualClock* clock, Ledger& ledger, LedgerEntry entry, std::vector<Tensor> scratch)
      : clock_(clock), ledger_(ledger), entry_(std::move(entry)), scratch_(std::move(scratch)) {
    if (clock_ == nullptr) return;
    start_s_ = clock_->now();
    end_s_ = clock_->transfer(entry_.wire_bytes);
  }
  void wait() override {
    if (clock_ == nullptr) return;
    entry_.count = entry_.result_bytes = entry_.wire_bytes = 0;
    entry_.wait_s = end_s_ - start_s_;
    entry_.exposed_s = clock_->wait_until(end_s_);
    ledger_.add(entry_);
  }

 private:
  VirtualClock* clock_;
  Ledger& ledger_;
  LedgerEntry entry_;
  std::vector<Tensor> scratch_;
  double start_s_ = 0;
  double end_s_ = 0;
};

class PlanCommunicator final : public Communicator {
 public:
  PlanCommunicator(const MeshShape& mesh, int rank, DeviceMemory& memory, VirtualClock* clock)
      : mesh_(mesh), rank_(rank), memory_(memory), clock_(clock) {}

  [[nodiscard]] const MeshShape& mesh() const override { return mesh_; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] Ledger* ledger() override { return &ledger_; }

  Request start_all_gather(const Exchange& exchange, std::span<const GatherPiece> pieces) override {
    const Group group = group_for(exchange);
    check_pieces(group, exchange, pieces);
    return start(group, gather_entry(group, exchange, pieces), {});
  }

  Request start_reduce_scatter(const Exchange& exchange, std::span<const ReducePiece> pieces) override {
    const Group group = group_for(exchange);
    check_pieces(group, exchange, pieces);
    std::vector<Tensor> scratch;
    for (const ReducePiece& piece : pieces)
      scratch.push_back(allocate(exchange, piece.whole.dtype, scratch_elements(group, piece)));
    return start(group, reduce_entry(group, exchange, pieces), std::move(scratch));
  }

  Request start_all_reduce(const Exchange& exchange, View data) override {
    const Group group = group_for(exchange);
    std::vector<Tensor> scratch;
    scratch.push_back(allocate(exchange, data.dtype, scratch_elements(group, data)));
    return start(group, all_reduce_entry(group, exchange, data.bytes()), std::move(scratch));
  }

  Request start_all_to_all(const Exchange& exchange, ConstView from, View to) override {
    const Group group = group_for(exchange);
    check_all_to_all(group, exchange, from, to);
    return start(group, all_to_all_entry(group, exchange, to), {});
  }

  Request start_send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                          std::span<const ReceivePiece> receives) override {
    const Group group = group_for(exchange);
    check_pieces(group, exchange, sends, receives);
    return start(group, send_recv_entry(group, exchange, sends, receives), {});
  }

  void all_reduce_sum(const Exchange& exchange, std::span<double> values) override {
    const Group group = group_for(exchange);
    start(group, all_reduce_entry(group, exchange, static_cast<int64_t>(values.size_bytes())), {}).wait();
  }
  void all_reduce_max(const Exchange& exchange, std::span<double> values) override {
    all_reduce_sum(exchange, values);
  }
  void barrier(Channel /*channel*/) override {}

 private:
  [[nodiscard]] Group group_for(const Exchange& exchange) const {
    return group_of(mesh_, rank_, exchange.axes);
  }

  Tensor allocate(const Exchange& exchange, DType dtype, int64_t elements) {
    if (elements == 0) return {};
    return memory_.allocate(dtype, {elements}, MemoryKind::kScratch,
                            std::string("exchange ") + exchange.tensor);
  }

  Request start(const Group& group, LedgerEntry entry, std::vector<Tensor> scratch) {
    if (group.size() == 1) return {};
    ledger_.add(entry);
    return Request(std::make_unique<PlannedWork>(clock_, ledger_, std::move(entry), std::move(scratch)));
  }

  const MeshShape mesh_;
  const int rank_;
  DeviceMemory& memory_;
  VirtualClock* clock_;
  Ledger ledger_;
};

}  // namespace

std::unique_ptr<Communicator> make_plan_communicator(const MeshShape& mesh, int rank, DeviceMemory& memory,
                                                     VirtualClock* clock) {
  return std::make_unique<PlanCommunicator>(mesh, rank, memory, clock);
}

}  // namespace lathe
