// One rank: gathers and scatters hand over the same memory, reductions change nothing.
#include "lathe/core/error.h"
#include "lathe/mesh/communicator.h"

namespace lathe {

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kPrepare:
      return "prepare";
    case Phase::kForward:
      return "forward";
    case Phase::kRemat:
      return "remat";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

namespace {

class SoloCommunicator final : public Communicator {
 public:
  [[nodiscard]] const MeshShape& mesh() const override { return mesh_; }
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size(AxisSet /*axes*/) const override { return 1; }
  [[nodiscard]] int index(AxisSet /*axes*/) const override { return 0; }

  void all_gather(const Exchange& exchange, ConstView part, View whole) override {
    LATHE_CHECK(part.data == whole.data, "{}: a solo gather is the part itself", exchange.tensor);
  }
  void reduce_scatter(const Exchange& exchange, ConstView whole, View part) override {
    LATHE_CHECK(part.data == whole.data, "{}: a solo reduction is the whole itself", exchange.tensor);
  }
  void all_reduce(const Exchange& /*exchange*/, View /*data*/) override {}
  void all_reduce_sum(const Exchange& /*exchange*/, std::span<double> /*values*/) override {}
  void all_reduce_max(const Exchange& /*exchange*/, std::span<double> /*values*/) override {}
  void barrier() override {}

 private:
  MeshShape mesh_;
};

}  // namespace

std::unique_ptr<Communicator> make_solo_communicator() {
  return std::make_unique<SoloCommunicator>();
}

}  // namespace lathe
