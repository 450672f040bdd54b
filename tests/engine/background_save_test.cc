// Checkpoints beside the steps: what is saved, and who waits for whom.
#include <atomic>
#include <future>
#include <stdexcept>

#include <gtest/gtest.h>

#include "lathe/core/error.h"

#include "engine/tiny_model.h"

namespace lathe {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

TEST(BackgroundTask, RunsBesideAndHandsItsFailureOverOnce) {
  BackgroundTask task;
  std::promise<void> go;
  task.start([&go] {
    go.get_future().wait();
    throw std::runtime_error("disk full");
  });
  EXPECT_TRUE(task.running());
  go.set_value();
  task.wait();
  EXPECT_FALSE(task.running());
  EXPECT_THROW(task.rethrow(), std::runtime_error);
  EXPECT_NO_THROW(task.rethrow());
  std::atomic<int> runs{0};
  for (int i = 0; i < 3; ++i) task.start([&runs] { ++runs; });
  task.rethrow();
  EXPECT_EQ(runs, 3);
}

class BackgroundSave : public ::testing::Test {
 protected:
  [[nodiscard]] static std::vector<float> weights(const ParameterStore& store) {
    std::vector<float> all;
    for (size_t i = 0; i < store.parameters().size(); ++i) {
      std::vector<float> part(static_cast<size_t>(store.parameters()[i].spec->shape.size()));
      store.read_value(i, 0, part);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  ModelConfig config_ = tiny_config(hybrid_layers());
  TinyEngine tiny_{config_, cpu_f32(2), tiny_options()};
  std::vector<MicroBatch> batches_ =
      tiny_batches(random_trajectories(config_, {20, 31, 9}, 3), {.rows = 1, .row_length = 64}, true);
};

// The weights that the saver reads are those of its step, though the device works at the next one meanwhile.
TEST_F(BackgroundSave, TheNextUpdateWaitsAndNothingElseDoes) {
  Engine& engine = tiny_.engine();
  static_cast<void>(tiny_.step(batches_));
  const std::vector<float> before = weights(engine.store());
  std::promise<void> fwd_bwd_done;
  std::vector<float> saved;
  engine.start_save([&] {
    fwd_bwd_done.get_future().wait();  // proof that the device goes on
    saved = weights(engine.store());
  });
  for (const MicroBatch& batch : batches_) engine.fwd_bwd(engine.prepare(batch));
  static_cast<void>(engine.wait_for_device());
  std::future<StepResult> update = engine.update();
  EXPECT_EQ(update.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  EXPECT_TRUE(engine.save_running());
  fwd_bwd_done.set_value();
  const StepResult result = engine.result_of(update);
  EXPECT_GE(result.save_wait_s, 0.02);
  EXPECT_LT(result.update_s, result.save_wait_s);
  engine.finish_save();
  EXPECT_EQ(saved, before);
  EXPECT_NE(weights(engine.store()), before);
}

TEST_F(BackgroundSave, AFailureIsThrownAtTheNextSaveOrTheEnd) {
  Engine& engine = tiny_.engine();
  engine.start_save([] { retryable_error("disk", "is full"); });
  EXPECT_THROW(engine.start_save([] {}), Error);
  EXPECT_NO_THROW(engine.finish_save());
  static_cast<void>(tiny_.step(batches_));
}

}  // namespace
}  // namespace lathe
