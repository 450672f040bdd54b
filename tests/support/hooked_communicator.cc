#include "support/hooked_communicator.h"

#include <utility>

namespace lathe::test {
namespace {

class HookedCommunicator final : public Communicator {
 public:
  HookedCommunicator(std::unique_ptr<Communicator> inner, AfterReduction after)
      : inner_(std::move(inner)), after_(std::move(after)) {}
  [[nodiscard]] const MeshShape& mesh() const override { return inner_->mesh(); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }

  Request start_all_gather(const Exchange& exchange, std::span<const GatherPiece> pieces) override {
    return inner_->start_all_gather(exchange, pieces);
  }
  Request start_reduce_scatter(const Exchange& exchange, std::span<const ReducePiece> pieces) override {
    return inner_->start_reduce_scatter(exchange, pieces);
  }
  Request start_all_reduce(const Exchange& exchange, View data) override {
    return inner_->start_all_reduce(exchange, data);
  }
  Request start_all_to_all(const Exchange& exchange, ConstView from, View to) override {
    return inner_->start_all_to_all(exchange, from, to);
  }
  Request start_send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                          std::span<const ReceivePiece> receives) override {
    return inner_->start_send_recv(exchange, sends, receives);
  }
  void all_reduce_sum(const Exchange& exchange, std::span<double> values) override {
    inner_->all_reduce_sum(exchange, values);
    after_(exchange, Reduction::kSum, values);
  }
  void all_reduce_max(const Exchange& exchange, std::span<double> values) override {
    inner_->all_reduce_max(exchange, values);
    after_(exchange, Reduction::kMax, values);
  }
  void barrier(Channel channel) override { inner_->barrier(channel); }
  void fail(const std::string& reason) override { inner_->fail(reason); }
  void check() override { inner_->check(); }
  [[nodiscard]] Ledger* ledger() override { return inner_->ledger(); }

 private:
  std::unique_ptr<Communicator> inner_;
  AfterReduction after_;
};

}  // namespace

std::unique_ptr<Communicator> hook_reductions(std::unique_ptr<Communicator> inner, AfterReduction after) {
  return std::make_unique<HookedCommunicator>(std::move(inner), std::move(after));
}

}  // namespace lathe::test
