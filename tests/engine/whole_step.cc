#include "engine/whole_step.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "support/run_ranks.h"

namespace lathe::test {
namespace {

void put(const Parameter& parameter, const std::vector<double>& here, ByName& whole) {
  std::vector<double>& to = whole[parameter.spec->name()];
  to.resize(static_cast<size_t>(parameter.spec->shape.size()));
  std::copy(here.begin(), here.begin() + parameter.shard.size(), to.begin() + parameter.shard.begin);
}

}  // namespace

WholeStep run_whole_step(const MeshRun& run) {
  WholeStep out;
  std::mutex mutex;
  run_ranks_of(run.mesh, [&](ThreadWorld& world, int rank) {
    const RowShare share{.index = run.mesh.index(rank, kAxesRows),
                         .count = run.mesh.size(kAxesRows),
                         .length_multiple = row_multiple(run.mesh.context, run.options.token_chunks)};
    const std::vector<MicroBatch> batches = run.batches(share);
    const auto make = [&](DeviceMemory& memory) {
      return drop_exchange(world.communicator(rank, memory), run.dropped);
    };
    TinyEngine tiny(run.config, run.device, run.options, 7, make);
    Engine& engine = tiny.engine();
    engine.keep_last_layers(run.options.remat == RematPolicy::kFull ? 0 : run.config.num_layers());
    for (const MicroBatch& batch : batches) engine.fwd_bwd(engine.prepare(batch));
    engine.wait_for_device();
    engine.device_thread().run([&] { engine.store().reduce_replicas(); });
    const std::vector<std::vector<double>> gradients = tiny.gradients({});
    auto update = engine.update();
    const StepResult result = engine.result_of(update);
    const std::vector<std::vector<double>> values = tiny.values();
    const std::lock_guard lock(mutex);
    for (size_t p = 0; p < values.size(); ++p) {
      const Parameter& parameter = engine.store().parameters()[p];
      if (parameter.trains) put(parameter, gradients[p], out.gradients);
      put(parameter, values[p], out.values);
    }
    if (rank == 0) out.result = result;
  });
  return out;
}

std::function<std::vector<MicroBatch>(const RowShare& share)> some_batches(const ModelConfig& config,
                                                                           int scale) {
  std::vector<int> lengths{61, 40, 22, 17, 9, 30, 3, 58};
  for (int& length : lengths) length *= scale;
  return [trajectories = random_trajectories(config, lengths, 5), scale](const RowShare& share) {
    return tiny_batches(trajectories, {.rows = 4, .row_length = 64 * scale}, true, share);
  };
}

double difference(const WholeStep& actual, const WholeStep& expected) {
  double worst = std::abs(actual.result.loss / expected.result.loss - 1);
  for (const auto& [name, want] : expected.gradients) {
    const std::vector<double>& got = actual.gradients.at(name);
    double gap = 0;
    double size = 1e-300;
    for (size_t i = 0; i < want.size(); ++i) {
      gap += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
    }
    worst = std::max(worst, std::sqrt(gap / size));
  }
  return worst;
}

}  // namespace lathe::test
