// A step on many ranks against the same step on one: every gradient, the loss, the weights after it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include "support/run_ranks.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

struct MeshCase {
  MeshShape mesh;
  std::vector<LayerKind> layers;
  HeadMode head = HeadMode::kFused;
  bool known = true;
  bool tied = false;
  RematPolicy remat = RematPolicy::kNone;
  bool replicate = true;
  int64_t token_chunks = 1;
  bool pipeline = false;
  std::vector<std::string> trainable = {};
  DType weights = DType::kF32;
};

std::vector<LayerKind> dense_layers() {
  return {{MixerKind::kLinearAttention, MlpKind::kDense}, {MixerKind::kFullAttention, MlpKind::kDense}};
}

EngineOptions options_of(const MeshCase& c) {
  EngineOptions options = tiny_options();
  options.head_mode = c.head;
  options.known_cotangent = c.known;
  options.remat = c.remat;
  options.replicate_sequence = c.replicate;
  options.head_chunk = 7;
  options.token_chunks = c.token_chunks;
  options.chunk_pipeline = c.pipeline;
  options.trainable = c.trainable;
  options.weight_dtype = c.weights;
  return options;
}

std::vector<MicroBatch> batches_of(const ModelConfig& config, const MeshShape& mesh, int rank,
                                   int64_t token_chunks) {
  const auto trajectories = random_trajectories(config, {61, 40, 22, 17, 9, 30, 3, 58}, 5);
  const RowShare share{.index = mesh.index(rank, kAxesRows),
                       .count = mesh.size(kAxesRows),
                       .length_multiple = row_multiple(mesh.context, token_chunks)};
  return tiny_batches(trajectories, {.rows = 3, .row_length = 64}, true, share);
}

// How far many ranks may be from one. Weights in bf16 are computed with in f32, and rounded after the step.
struct Bounds {
  double gradient = 1e-10;  // relative to the largest of its tensor
  double loss = 1e-11;
  double sums = 1e-9;
};
constexpr Bounds kOfF32{.gradient = 1e-4, .loss = 1e-5, .sums = 1e-3};

DeviceOptions device_of(const MeshCase& c) {
  DeviceOptions device = ref_f64();
  if (c.weights == DType::kBF16) device.float_type = DType::kF32;
  return device;
}

struct OneRank {
  std::vector<std::vector<double>> gradients;
  StepResult result;
  std::vector<std::vector<double>> values;
};

OneRank run_one(const ModelConfig& config, const MeshCase& c) {
  OneRank out;
  const std::vector<MicroBatch> batches = batches_of(config, {}, 0, 1);
  TinyEngine tiny(config, device_of(c), options_of(c));
  tiny.engine().keep_last_layers(c.remat == RematPolicy::kFull ? 0 : config.num_layers());
  out.gradients = tiny.gradients(batches);
  TinyEngine again(config, device_of(c), options_of(c));
  again.engine().keep_last_layers(c.remat == RematPolicy::kFull ? 0 : config.num_layers());
  out.result = again.step(batches);
  out.values = again.values();
  return out;
}

std::optional<size_t> index_of(const ParameterStore& store, ParameterRole role, int layer) {
  for (size_t i = 0; i < store.parameters().size(); ++i) {
    const ParameterSpec& spec = *store.parameters()[i].spec;
    if (spec.role == role && spec.layer == layer) return i;
  }
  return std::nullopt;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& want, int64_t first,
                  const std::string& what, double bound) {
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[static_cast<size_t>(first) + i], bound * largest + 1e-13)
        << what << " element " << first + static_cast<int64_t>(i);
  }
}

// What differs in the last bits before may be rounded to the neighbour, or, where a gradient is next to nothing, go the
// other way; a few times.
void expect_rounded_alike(const std::vector<double>& got, const std::vector<double>& want, int64_t first,
                          const std::string& what) {
  constexpr double kUlp = 1.0 / 128;
  const double two_steps = 2 * tiny_options().optimizer.learning_rate;
  size_t other = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double expected = want[static_cast<size_t>(first) + i];
    ASSERT_NEAR(got[i], expected, kUlp * std::abs(expected) + two_steps) << what << " element " << i;
    other += got[i] == expected ? 0 : 1;
  }
  EXPECT_LE(other, 1 + got.size() / 100) << what;
}

void expect_same_step(const MeshCase& c) {
  const ModelConfig config = tiny_config(c.layers, c.tied);
  const OneRank one = run_one(config, c);
  const Bounds bounds = c.weights == DType::kBF16 ? kOfF32 : Bounds{};
  run_ranks_of(c.mesh, [&](ThreadWorld& world, int rank) {
    const std::vector<MicroBatch> batches = batches_of(config, c.mesh, rank, c.token_chunks);
    const auto make = [&](DeviceMemory& memory) { return world.communicator(rank, memory); };
    TinyEngine tiny(config, device_of(c), options_of(c), 7, make);
    Engine& engine = tiny.engine();
    engine.keep_last_layers(c.remat == RematPolicy::kFull ? 0 : config.num_layers());
    for (const MicroBatch& batch : batches) engine.fwd_bwd(engine.prepare(batch));
    engine.wait_for_device();
    engine.device_thread().run([&] { engine.store().reduce_replicas(); });
    const std::vector<std::vector<double>> gradients = tiny.gradients({});
    for (size_t p = 0; p < gradients.size(); ++p) {
      const Parameter& parameter = engine.store().parameters()[p];
      expect_close(gradients[p], one.gradients[p], parameter.shard.begin,
                   fmt::format("rank {}: {}", rank, parameter.spec->name()), bounds.gradient);
    }
    auto update = engine.update();
    const StepResult result = engine.result_of(update);
    EXPECT_NEAR(result.loss, one.result.loss, bounds.loss);
    EXPECT_DOUBLE_EQ(result.denominator, one.result.denominator);
    EXPECT_NEAR(result.update.grad_norm, one.result.update.grad_norm,
                bounds.gradient * one.result.update.grad_norm);
    EXPECT_NEAR(result.stats.mismatch_tokens, one.result.stats.mismatch_tokens, 0);
    EXPECT_NEAR(result.stats.ppo_kl_num, one.result.stats.ppo_kl_num, bounds.sums);
    EXPECT_DOUBLE_EQ(result.stats.sequences, one.result.stats.sequences);
    EXPECT_NEAR(result.moe_max_load, one.result.moe_max_load, 1e-12);
    const std::vector<std::vector<double>> values = tiny.values();
    for (size_t p = 0; p < values.size(); ++p) {
      const Parameter& parameter = engine.store().parameters()[p];
      const std::string what = fmt::format("rank {}: value of {}", rank, parameter.spec->name());
      if (c.weights == DType::kBF16) {
        expect_rounded_alike(values[p], one.values[p], parameter.shard.begin, what);
        continue;
      }
      expect_close(values[p], one.values[p], parameter.shard.begin, what, 1e-7);
    }
  });
}

TEST(MeshStep, WeightsCutOverFsdp) {
  expect_same_step({.mesh = {.fsdp = 2}, .layers = hybrid_layers()});
  expect_same_step({.mesh = {.fsdp = 3}, .layers = dense_layers(), .tied = true});
  expect_same_step({.mesh = {.fsdp = 2}, .layers = hybrid_layers(), .remat = RematPolicy::kFull});
}

// Frozen: embedding, head, mixers; of the experts' fused weights some rows train.
TEST(MeshStep, PartsThatTrain) {
  const std::vector<std::string> parts{"experts\\.[13]\\.up_proj", "experts\\.2\\.down_proj",
                                       "layers\\.0.*norm"};
  for (const MeshShape& mesh : {MeshShape{.fsdp = 2, .context = 2}, MeshShape{.data = 2, .expert = 2}})
    expect_same_step({.mesh = mesh, .layers = hybrid_layers(), .trainable = parts});
  expect_same_step({.mesh = {.fsdp = 2, .context = 2},
                    .layers = hybrid_layers(),
                    .tied = true,
                    .remat = RematPolicy::kFull,
                    .trainable = {"self_attn", "linear_attn", "experts\\.0\\."}});
}

TEST(MeshStep, WeightsInBf16) {
  for (const MeshShape& mesh : {MeshShape{.fsdp = 2, .context = 2}, MeshShape{.data = 2, .expert = 2}})
    expect_same_step({.mesh = mesh, .layers = hybrid_layers(), .weights = DType::kBF16});
}

TEST(MeshStep, DataReplicas) {
  expect_same_step({.mesh = {.data = 2}, .layers = hybrid_layers()});
  expect_same_step({.mesh = {.data = 2, .fsdp = 2}, .layers = hybrid_layers(), .tied = true});
}

TEST(MeshStep, MoreRanksThanRows) {
  expect_same_step({.mesh = {.data = 2, .fsdp = 2}, .layers = dense_layers()});
}

TEST(MeshStep, EveryHeadMode) {
  for (const HeadMode mode : {HeadMode::kChunked, HeadMode::kLocal, HeadMode::kFused}) {
    for (const bool known : {true, false}) {
      expect_same_step({.mesh = {.fsdp = 2}, .layers = dense_layers(), .head = mode, .known = known});
    }
  }
}

TEST(MeshStep, PositionsCutOverContext) {
  for (const int ranks : {2, 4}) {
    expect_same_step({.mesh = {.context = ranks}, .layers = dense_layers()});
    expect_same_step(
        {.mesh = {.context = ranks}, .layers = dense_layers(), .tied = true, .remat = RematPolicy::kFull});
  }
  expect_same_step({.mesh = {.fsdp = 2, .context = 2}, .layers = dense_layers()});
}

TEST(MeshStep, EveryHeadModeUnderContext) {
  for (const HeadMode mode : {HeadMode::kChunked, HeadMode::kLocal, HeadMode::kFused}) {
    for (const bool replicate : {true, false}) {
      expect_same_step({.mesh = {.context = 2},
                        .layers = dense_layers(),
                        .head = mode,
                        .known = false,
                        .replicate = replicate});
    }
  }
}

TEST(MeshStep, ExpertsCutOverTheRing) {
  expect_same_step({.mesh = {.expert = 2}, .layers = hybrid_layers()});
  expect_same_step({.mesh = {.context = 2}, .layers = hybrid_layers(), .remat = RematPolicy::kFull});
  // Five experts on four ranks: two, two, one and none.
  expect_same_step({.mesh = {.context = 2, .expert = 2}, .layers = hybrid_layers(), .tied = true});
  expect_same_step({.mesh = {.fsdp = 2, .context = 2, .expert = 2}, .layers = hybrid_layers()});
  expect_same_step({.mesh = {.data = 2, .expert = 2}, .layers = hybrid_layers()});
}

TEST(MeshStep, TokensInChunks) {
  for (const bool pipeline : {false, true}) {
    for (const RematPolicy remat : {RematPolicy::kNone, RematPolicy::kFull}) {
      expect_same_step({.mesh = {.context = 2, .expert = 2},
                        .layers = hybrid_layers(),
                        .remat = remat,
                        .token_chunks = 4,
                        .pipeline = pipeline});
    }
  }
}

// One rank alone sees it; all of them say where it is, and skip the step.
TEST(MeshStep, AGradientThatIsNotFiniteIsNamedOnEveryRank) {
  const MeshCase c{.mesh = {.fsdp = 2}, .layers = dense_layers()};
  const ModelConfig config = tiny_config(c.layers);
  run_ranks_of(c.mesh, [&](ThreadWorld& world, int rank) {
    const auto make = [&](DeviceMemory& memory) { return world.communicator(rank, memory); };
    TinyEngine tiny(config, ref_f64(), options_of(c), 7, make);
    Engine& engine = tiny.engine();
    engine.keep_last_layers(config.num_layers());
    for (const MicroBatch& batch : batches_of(config, c.mesh, rank, 1)) engine.fwd_bwd(engine.prepare(batch));
    engine.wait_for_device();
    const Parameter& down = engine.store().parameters()[*index_of(engine.store(), ParameterRole::kDown, 1)];
    if (rank == 1) {
      engine.device_thread().run(
          [&] { tiny.device().kernels.fill(*tiny.device().queue, std::nan(""), down.gradient); });
    }
    auto update = engine.update();
    const StepResult result = engine.result_of(update);
    EXPECT_TRUE(result.update.skipped) << rank;
    EXPECT_NE(result.update.reason.find(down.spec->slices.front().tensor), std::string::npos)
        << "rank " << rank << ": " << result.update.reason;
  });
}

// An id whose embedding is too large stands in the last shard alone: the sequence's tokens on the first one are scored
// finitely, and their cotangents change all the same.
TEST(MeshStep, ALogProbThatIsNotFiniteOnOneShardIsKnownOnAll) {
  const ModelConfig config = tiny_config(dense_layers());
  auto trajectories = random_trajectories(config, {20, 40}, 5);
  const auto bad = static_cast<int32_t>(config.vocab_size - 1);
  for (TinyTrajectory& t : trajectories) {
    for (int32_t& id : t.prompt) id = id == bad ? 0 : id;
    for (int32_t& id : t.completion) id = id == bad ? 0 : id;
  }
  trajectories[1].completion[trajectories[1].completion.size() - 3] = bad;
  EngineOptions options = tiny_options();
  const auto step = [&](TinyEngine& tiny, const MeshShape& mesh, int rank) {
    const RowShare share{.index = mesh.index(rank, kAxesRows),
                         .count = mesh.size(kAxesRows),
                         .length_multiple = row_multiple(mesh.context, 1)};
    Engine& engine = tiny.engine();
    engine.keep_last_layers(config.num_layers());
    const size_t table = *index_of(engine.store(), ParameterRole::kEmbedding, -1);
    std::vector<float> values(static_cast<size_t>(config.vocab_size * config.hidden_size), 0.01F);
    std::fill(values.end() - config.hidden_size, values.end(), std::numeric_limits<float>::infinity());
    engine.device_thread().run([&] { engine.store().write_value(table, values); });
    return tiny.step(tiny_batches(trajectories, {.rows = 1, .row_length = 64}, true, share));
  };
  TinyEngine alone(config, ref_f64(), options);
  const StepResult one = step(alone, {}, 0);
  EXPECT_EQ(one.head_restarts, 1);
  EXPECT_GT(one.stats.nonfinite_tokens, 0);
  const MeshShape mesh{.context = 2};
  run_ranks_of(mesh, [&](ThreadWorld& world, int rank) {
    const auto make = [&](DeviceMemory& memory) { return world.communicator(rank, memory); };
    TinyEngine tiny(config, ref_f64(), options, 7, make);
    const StepResult result = step(tiny, mesh, rank);
    EXPECT_EQ(result.head_restarts, 1) << rank;
    EXPECT_EQ(result.stats.nonfinite_tokens, one.stats.nonfinite_tokens) << rank;
    EXPECT_EQ(result.update.skipped, one.update.skipped) << rank;
    EXPECT_NEAR(result.loss, one.loss, 1e-11) << rank;
  });
}

// Replicas exchange nothing before the end of a step: a rank that gives up does not wait for that.
TEST(MeshStep, ARankThatGivesUpLeavesItsMicroBatchAtTheNextLayer) {
  const MeshCase c{.mesh = {.data = 2}, .layers = dense_layers()};
  const ModelConfig config = tiny_config(c.layers);
  run_ranks_of(c.mesh, [&](ThreadWorld& world, int rank) {
    Communicator* communicator = nullptr;
    const auto make = [&](DeviceMemory& memory) {
      auto made = world.communicator(rank, memory);
      communicator = made.get();
      return made;
    };
    TinyEngine tiny(config, ref_f64(), options_of(c), 7, make);
    Engine& engine = tiny.engine();
    engine.keep_last_layers(config.num_layers());
    const MicroBatch batch = batches_of(config, c.mesh, rank, 1).front();
    engine.fwd_bwd(engine.prepare(batch));
    engine.wait_for_device();
    communicator->fail("no more");
    EXPECT_THROW(
        {
          engine.fwd_bwd(engine.prepare(batch));
          engine.wait_for_device();
        },
        Error);
  });
}

}  // namespace
}  // namespace lathe::test
