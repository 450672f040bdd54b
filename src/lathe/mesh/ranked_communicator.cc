#include "lathe/mesh/ranked_communicator.h"

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "lathe/core/clock.h"
#include "lathe/core/error.h"
#include "lathe/mesh/collectives.h"
#include "lathe/mesh/exchange_thread.h"
#include "lathe/mesh/ledger.h"

namespace lathe {
namespace {

constexpr int kAxisSets = 16;
constexpr int kChannels = 3;
constexpr int kStages = 2;
constexpr int kSequences = 1 << 14;  // exchanges of one group and channel that may be under way at once

// Counts when the exchange begins, and its times when somebody has waited for it.
class ExchangeWork final : public Request::Work {
 public:
  ExchangeWork(std::shared_ptr<Operation> operation, ExchangeThread& thread, Ledger& ledger,
               LedgerEntry entry)
      : operation_(std::move(operation)), thread_(thread), ledger_(ledger), entry_(std::move(entry)) {}

  void wait() override {
    const double begin = steady_seconds();
    thread_.wait(*operation_);
    entry_.exposed_s = steady_seconds() - begin;
    entry_.wait_s = operation_->end_s - operation_->start_s;
    entry_.count = entry_.result_bytes = entry_.wire_bytes = 0;
    ledger_.add(entry_);
  }

 private:
  std::shared_ptr<Operation> operation_;
  ExchangeThread& thread_;
  Ledger& ledger_;
  LedgerEntry entry_;
};

class RankedCommunicator final : public Communicator {
 public:
  RankedCommunicator(const MeshShape& mesh, int rank, DeviceMemory& memory, OpenTransport open)
      : mesh_(mesh), rank_(rank), memory_(memory), thread_(std::move(open)) {
    for (size_t axes = 0; axes < kAxisSets; ++axes)
      groups_[axes] = group_of(mesh_, rank_, static_cast<AxisSet>(axes));
  }

  [[nodiscard]] const MeshShape& mesh() const override { return mesh_; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] Ledger* ledger() override { return &ledger_; }
  void fail(const std::string& reason) override { thread_.fail(reason); }
  void check() override { thread_.check(); }

  Request start_all_gather(const Exchange& exchange, std::span<const GatherPiece> pieces) override {
    const Group& group = group_for(exchange);
    check_pieces(group, exchange, pieces);
    return start(exchange, {gather_stage(group, pieces)}, {}, gather_entry(group, exchange, pieces));
  }

  Request start_reduce_scatter(const Exchange& exchange, std::span<const ReducePiece> pieces) override {
    const Group& group = group_for(exchange);
    check_pieces(group, exchange, pieces);
    std::vector<Tensor> scratch;
    for (const ReducePiece& piece : pieces)
      scratch.push_back(allocate(exchange, piece.whole.dtype, scratch_elements(group, piece)));
    Stage stage = reduce_stage(group, pieces, scratch);
    return start(exchange, {std::move(stage)}, std::move(scratch), reduce_entry(group, exchange, pieces));
  }

  Request start_all_reduce(const Exchange& exchange, View data) override {
    const Group& group = group_for(exchange);
    std::vector<Tensor> scratch;
    scratch.push_back(allocate(exchange, data.dtype, scratch_elements(group, data)));
    std::vector<Stage> stages = all_reduce_stages(group, data, scratch.front());
    return start(exchange, std::move(stages), std::move(scratch),
                 all_reduce_entry(group, exchange, data.bytes()));
  }

  Request start_all_to_all(const Exchange& exchange, ConstView from, View to) override {
    const Group& group = group_for(exchange);
    check_all_to_all(group, exchange, from, to);
    return start(exchange, {all_to_all_stage(group, from, to)}, {}, all_to_all_entry(group, exchange, to));
  }

  Request start_send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                          std::span<const ReceivePiece> receives) override {
    const Group& group = group_for(exchange);
    check_pieces(group, exchange, sends, receives);
    return start(exchange, {send_recv_stage(group, sends, receives)}, {},
                 send_recv_entry(group, exchange, sends, receives));
  }

  void all_reduce_sum(const Exchange& exchange, std::span<double> values) override {
    host_reduce(exchange, values, Combine::kSum);
  }
  void all_reduce_max(const Exchange& exchange, std::span<double> values) override {
    host_reduce(exchange, values, Combine::kMax);
  }

  void barrier(Channel channel) override {
    const Exchange exchange{
        .axes = kAxisAll, .phase = Phase::kPrepare, .tensor = "barrier", .channel = channel};
    double nothing = 0;
    auto operation = std::make_shared<Operation>();
    operation->stages = {
        host_reduce_stage(group_for(exchange), {&nothing, 1}, Combine::kSum, &operation->host_parts)};
    enqueue(exchange, operation);
    thread_.wait(*operation);
  }

 private:
  [[nodiscard]] const Group& group_for(const Exchange& exchange) const {
    LATHE_CHECK(exchange.axes < kAxisSets, "{}: axes {}", exchange.tensor, exchange.axes);
    return groups_[exchange.axes];
  }

  Tensor allocate(const Exchange& exchange, DType dtype, int64_t elements) {
    if (elements == 0) return {};
    return memory_.allocate(dtype, {elements}, MemoryKind::kScratch,
                            std::string("exchange ") + exchange.tensor);
  }

  // The same number on every rank of the group, for the same exchange.
  int next_tag(const Exchange& exchange) {
    const int slot = static_cast<int>(exchange.channel) * kAxisSets + exchange.axes;
    const unsigned sequence = sequences_[static_cast<size_t>(slot)].fetch_add(1) % kSequences;
    return (slot * kSequences + static_cast<int>(sequence)) * kStages;
  }

  void enqueue(const Exchange& exchange, const std::shared_ptr<Operation>& operation) {
    operation->tag = next_tag(exchange);
    thread_.start(operation);
  }

  Request start(const Exchange& exchange, std::vector<Stage> stages, std::vector<Tensor> scratch,
                LedgerEntry entry) {
    if (group_for(exchange).size() == 1) {
      for (const Stage& stage : stages) copy_alone(stage);
      return {};
    }
    auto operation = std::make_shared<Operation>();
    operation->stages = std::move(stages);
    operation->scratch = std::move(scratch);
    ledger_.add(entry);
    enqueue(exchange, operation);
    return Request(std::make_unique<ExchangeWork>(std::move(operation), thread_, ledger_, std::move(entry)));
  }

  void host_reduce(const Exchange& exchange, std::span<double> values, Combine combine) {
    const Group& group = group_for(exchange);
    if (group.size() == 1) return;
    auto operation = std::make_shared<Operation>();
    operation->stages = {host_reduce_stage(group, values, combine, &operation->host_parts)};
    LedgerEntry entry = all_reduce_entry(group, exchange, static_cast<int64_t>(values.size_bytes()));
    ledger_.add(entry);
    enqueue(exchange, operation);
    ExchangeWork(std::move(operation), thread_, ledger_, std::move(entry)).wait();
  }

  const MeshShape mesh_;
  const int rank_;
  DeviceMemory& memory_;
  Ledger ledger_;
  std::array<Group, kAxisSets> groups_;
  std::array<std::atomic<unsigned>, kAxisSets * kChannels> sequences_{};
  ExchangeThread thread_;
};

}  // namespace

std::unique_ptr<Communicator> make_ranked_communicator(const MeshShape& mesh, int rank, DeviceMemory& memory,
                                                       OpenTransport open) {
  return std::make_unique<RankedCommunicator>(mesh, rank, memory, std::move(open));
}

}  // namespace lathe
