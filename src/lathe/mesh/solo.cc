// One rank: what is gathered or reduced is already there, or one copy away.
#include "lathe/mesh/collectives.h"
#include "lathe/mesh/communicator.h"

namespace lathe {
namespace {

class SoloCommunicator final : public Communicator {
 public:
  [[nodiscard]] const MeshShape& mesh() const override { return mesh_; }
  [[nodiscard]] int rank() const override { return 0; }

  Request start_all_gather(const Exchange& exchange, std::span<const GatherPiece> pieces) override {
    check_pieces(self_, exchange, pieces);
    copy_alone(gather_stage(self_, pieces));
    return {};
  }
  Request start_reduce_scatter(const Exchange& exchange, std::span<const ReducePiece> pieces) override {
    check_pieces(self_, exchange, pieces);
    const std::vector<Tensor> no_scratch(pieces.size());
    copy_alone(reduce_stage(self_, pieces, no_scratch));
    return {};
  }
  Request start_all_reduce(const Exchange& /*exchange*/, View /*data*/) override { return {}; }
  Request start_all_to_all(const Exchange& exchange, ConstView from, View to) override {
    check_all_to_all(self_, exchange, from, to);
    copy_alone(all_to_all_stage(self_, from, to));
    return {};
  }
  Request start_send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                          std::span<const ReceivePiece> receives) override {
    check_pieces(self_, exchange, sends, receives);
    copy_alone(send_recv_stage(self_, sends, receives));
    return {};
  }
  void all_reduce_sum(const Exchange& /*exchange*/, std::span<double> /*values*/) override {}
  void all_reduce_max(const Exchange& /*exchange*/, std::span<double> /*values*/) override {}
  void barrier(Channel /*channel*/) override {}
  [[nodiscard]] Ledger* ledger() override { return nullptr; }

 private:
  MeshShape mesh_;
  Group self_{{0}, 0};
};

}  // namespace

std::unique_ptr<Communicator> make_solo_communicator() {
  return std::make_unique<SoloCommunicator>();
}

}  // namespace lathe
