#include "support/dropping_communicator.h"

#include <cstring>
#include <utility>

namespace lathe::test {
namespace {

// Passes everything on but one exchange, on all ranks.
class DroppingCommunicator final : public Communicator {
 public:
  DroppingCommunicator(std::unique_ptr<Communicator> inner, const DroppedExchange* dropped)
      : inner_(std::move(inner)), dropped_(dropped) {}
  [[nodiscard]] const MeshShape& mesh() const override { return inner_->mesh(); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }

  Request start_all_gather(const Exchange& exchange, std::span<const GatherPiece> pieces) override {
    if (!drops(exchange)) return inner_->start_all_gather(exchange, pieces);
    const int64_t index = this->index(exchange.axes);
    for (const GatherPiece& piece : pieces) {
      std::memset(piece.whole.data, 0, static_cast<size_t>(piece.whole.bytes()));
      const int64_t part = piece.part.bytes() / piece.blocks;
      for (int64_t b = 0; b < piece.blocks; ++b)
        std::memcpy(piece.whole.data + (b * size(exchange.axes) + index) * part, piece.part.data + b * part,
                    static_cast<size_t>(part));
    }
    return {};
  }
  Request start_reduce_scatter(const Exchange& exchange, std::span<const ReducePiece> pieces) override {
    if (!drops(exchange)) return inner_->start_reduce_scatter(exchange, pieces);
    const int64_t index = this->index(exchange.axes);
    for (const ReducePiece& piece : pieces) {
      const int64_t part = piece.part.bytes() / piece.blocks;
      for (int64_t b = 0; b < piece.blocks; ++b)
        std::memcpy(piece.part.data + b * part, piece.whole.data + (b * size(exchange.axes) + index) * part,
                    static_cast<size_t>(part));
    }
    return {};
  }
  Request start_all_reduce(const Exchange& exchange, View data) override {
    return drops(exchange) ? Request() : inner_->start_all_reduce(exchange, data);
  }
  Request start_all_to_all(const Exchange& exchange, ConstView from, View to) override {
    if (!drops(exchange)) return inner_->start_all_to_all(exchange, from, to);
    std::memset(to.data, 0, static_cast<size_t>(to.bytes()));
    return {};
  }
  Request start_send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                          std::span<const ReceivePiece> receives) override {
    if (!drops(exchange)) return inner_->start_send_recv(exchange, sends, receives);
    inner_->send_recv(exchange, sends, receives);
    for (size_t i = 0; i < receives.size(); ++i) {
      const int half = 2 * i < receives.size() ? 0 : 1;
      if (dropped_->only_half >= 0 && dropped_->only_half != half) continue;
      std::memset(receives[i].to.data, 0, static_cast<size_t>(receives[i].to.bytes()));
    }
    return {};
  }
  void all_reduce_sum(const Exchange& exchange, std::span<double> values) override {
    if (!drops(exchange)) inner_->all_reduce_sum(exchange, values);
  }
  void all_reduce_max(const Exchange& exchange, std::span<double> values) override {
    inner_->all_reduce_max(exchange, values);
  }
  void barrier(Channel channel) override { inner_->barrier(channel); }
  void fail(const std::string& reason) override { inner_->fail(reason); }
  void check() override { inner_->check(); }
  [[nodiscard]] Ledger* ledger() override { return inner_->ledger(); }

 private:
  [[nodiscard]] bool drops(const Exchange& exchange) const {
    return dropped_ != nullptr && dropped_->tensor == exchange.tensor && dropped_->phase == exchange.phase;
  }
  std::unique_ptr<Communicator> inner_;
  const DroppedExchange* dropped_;
};

}  // namespace

std::unique_ptr<Communicator> drop_exchange(std::unique_ptr<Communicator> inner,
                                            const DroppedExchange* dropped) {
  return std::make_unique<DroppingCommunicator>(std::move(inner), dropped);
}

}  // namespace lathe::test
