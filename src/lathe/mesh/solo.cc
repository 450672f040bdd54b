// One rank: what is gathered or reduced is already there, in the same memory.
#include "lathe/core/error.h"
#include "lathe/mesh/communicator.h"

namespace lathe {
namespace {

class SoloCommunicator final : public Communicator {
 public:
  [[nodiscard]] const MeshShape& mesh() const override { return mesh_; }
  [[nodiscard]] int rank() const override { return 0; }

  Request start_all_gather(const Exchange& exchange, std::span<const GatherPiece> pieces) override {
    for (const GatherPiece& piece : pieces) check_same(exchange, piece.part, piece.whole);
    return {};
  }
  Request start_reduce_scatter(const Exchange& exchange, std::span<const ReducePiece> pieces) override {
    for (const ReducePiece& piece : pieces) check_same(exchange, piece.whole, piece.part);
    return {};
  }
  Request start_all_reduce(const Exchange& /*exchange*/, View /*data*/) override { return {}; }
  Request start_all_to_all(const Exchange& exchange, ConstView from, View to) override {
    check_same(exchange, from, to);
    return {};
  }
  Request start_send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                          std::span<const ReceivePiece> receives) override {
    LATHE_CHECK(sends.empty() && receives.empty(), "{}: one rank has no neighbour", exchange.tensor);
    return {};
  }
  void all_reduce_sum(const Exchange& /*exchange*/, std::span<double> /*values*/) override {}
  void all_reduce_max(const Exchange& /*exchange*/, std::span<double> /*values*/) override {}
  void barrier(Channel /*channel*/) override {}
  [[nodiscard]] Ledger* ledger() override { return nullptr; }

 private:
  static void check_same(const Exchange& exchange, ConstView from, ConstView to) {
    LATHE_CHECK(from.data == to.data, "{}: on one rank the part is the whole", exchange.tensor);
  }
  MeshShape mesh_;
};

}  // namespace

std::unique_ptr<Communicator> make_solo_communicator() {
  return std::make_unique<SoloCommunicator>();
}

}  // namespace lathe
