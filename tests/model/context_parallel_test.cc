// Rows cut over context ranks give what one rank gives; and what is exchanged is needed.
#include <algorithm>

#include "lathe/model/context_heads.h"

#include "model/sharded_decoder.h"

namespace lathe::test {
namespace {

using Results = std::map<std::string, HostArray>;

constexpr LayerKind kDelta{MixerKind::kLinearAttention, MlpKind::kDense};
constexpr LayerKind kAttention{MixerKind::kFullAttention, MlpKind::kDense};
constexpr int64_t kRowLength = 96;  // shards of 12 tokens for 8 ranks, of 32 for 3

DeviceOptions device_of(const std::string& name, DType type) {
  DeviceOptions options;
  options.name = name;
  options.poison = true;
  options.float_type = type;
  return options;
}

ShardedRun base_run(std::vector<LayerKind> layers, const std::vector<int32_t>& segments, int64_t rows) {
  ShardedRun run;
  run.config = small_config(std::move(layers));
  run.rows = rows;
  run.segments = segments;
  run.device = device_of("ref", DType::kF64);
  run.options.delta_rule_chunk = 16;
  run.options.delta_context = DeltaContext::kSequence;
  return run;
}

// Rows of segments given by their lengths; a negative length is padding.
std::vector<int32_t> row_of(const std::vector<int>& lengths) {
  std::vector<int32_t> row;
  int32_t segment = 0;
  for (const int length : lengths) {
    if (length > 0) ++segment;
    row.insert(row.end(), static_cast<size_t>(std::abs(length)), length > 0 ? segment : 0);
  }
  row.resize(kRowLength, 0);
  return row;
}

struct Layout {
  std::string name;
  std::vector<std::vector<int>> rows;
};

// Shards end every 12, 24, 32 and 48 tokens.
const std::vector<Layout> kLayouts{
    {"one segment over all shards", {{96}}},
    {"shards of padding", {{30}, {50, -20, 10}}},
    {"starts on a shard's last token", {{23, 24, 49}, {11, 36, 16, 33}, {31, 32, 33}}},
    {"starts on a shard's first token", {{24, 24, 24, 24}, {48, 48}}},
    {"starts within the reach of the convolution", {{22, 1, 72}, {46, 1, 1, 1, 47}, {45, 51}}},
    {"padding first", {{-50, 46}, {-12, 84}}},
    {"nothing but padding", {{-96}, {96}}},
};

std::vector<int32_t> segments_of(const Layout& layout) {
  std::vector<int32_t> segments;
  for (const std::vector<int>& row : layout.rows) {
    const std::vector<int32_t> one = row_of(row);
    segments.insert(segments.end(), one.begin(), one.end());
  }
  return segments;
}

ShardedRun layout_run(std::vector<LayerKind> layers, const Layout& layout) {
  return base_run(std::move(layers), segments_of(layout), static_cast<int64_t>(layout.rows.size()));
}

Results on_ranks(ShardedRun run, int context) {
  run.mesh.context = context;
  return run_sharded(run);
}

void expect_equal(const Results& actual, const Results& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, values] : expected)
    expect_near(actual.at(name), values, tolerance, what + ": " + name);
}

TEST(ContextParallel, GatedDeltaRuleEqualsOneRank) {
  for (const Layout& layout : kLayouts) {
    const ShardedRun run = layout_run({kDelta, kDelta}, layout);
    const Results one = run_sharded(run);
    for (const int context : {2, 3, 4, 8}) {
      expect_equal(on_ranks(run, context), one, 1e-11, fmt::format("{} on {}", layout.name, context));
      if (HasFailure()) return;
    }
  }
}

TEST(ContextParallel, GatedDeltaRuleByHeadsEqualsOneRank) {
  for (const Layout& layout : kLayouts) {
    ShardedRun run = layout_run({kDelta, kDelta}, layout);
    run.config.linear_num_key_heads = 4;
    run.config.linear_num_value_heads = 8;
    const Results one = run_sharded(run);
    run.options.delta_context = DeltaContext::kHeads;
    for (const int context : {2, 4}) {
      expect_equal(on_ranks(run, context), one, 1e-11, fmt::format("{} on {}", layout.name, context));
      if (HasFailure()) return;
    }
  }
}

TEST(ContextParallel, HeadsMustDivide) {
  const ModelConfig config = small_config({kDelta});  // two key heads
  EXPECT_EQ(resolve_delta_context(config, DeltaContext::kAuto, 2), DeltaContext::kHeads);
  EXPECT_EQ(resolve_delta_context(config, DeltaContext::kAuto, 4), DeltaContext::kSequence);
  EXPECT_EQ(resolve_delta_context(config, DeltaContext::kSequence, 2), DeltaContext::kSequence);
  EXPECT_EQ(resolve_delta_context(config, DeltaContext::kHeads, 2), DeltaContext::kHeads);
  try {
    static_cast<void>(resolve_delta_context(config, DeltaContext::kHeads, 4));
    FAIL() << "2 heads on 4 ranks";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("2 key heads do not divide among 4 context ranks"),
              std::string::npos)
        << error.what();
  }
}

TEST(ContextParallel, AttentionEqualsOneRank) {
  for (const Layout& layout : kLayouts) {
    ShardedRun run = layout_run({kAttention, kAttention}, layout);
    const Results one = run_sharded(run);
    for (const bool balance : {true, false}) {
      run.options.context_balance = balance;
      for (const int context : {2, 3, 4, 8}) {
        expect_equal(on_ranks(run, context), one, 1e-11,
                     fmt::format("{} on {}, balance {}", layout.name, context, balance));
        if (HasFailure()) return;
      }
    }
  }
}

// Against f64; one rank is up to 4e-5 off itself.
TEST(ContextParallel, FastDeviceAgrees) {
  for (const Layout& layout : kLayouts) {
    ShardedRun run = layout_run({kDelta, kAttention, kDelta}, layout);
    const Results one = run_sharded(run);
    run.device = device_of("cpu", DType::kF32);
    for (const int context : {1, 2, 4}) {
      expect_equal(on_ranks(run, context), one, 1e-4, fmt::format("{} on {}", layout.name, context));
      if (HasFailure()) return;
    }
  }
}

TEST(ContextParallel, RecomputedLayersToo) {
  ShardedRun run = layout_run({kDelta, kAttention}, kLayouts[2]);
  const Results one = run_sharded(run);
  run.keep_all = false;
  expect_equal(on_ranks(run, 4), one, 1e-11, "recomputed");
}

TEST(ContextParallel, SameBitsTwice) {
  ShardedRun run = layout_run({kDelta, kAttention}, kLayouts[1]);
  run.device = device_of("cpu", DType::kF32);
  const Results first = on_ranks(run, 4);
  run.device.threads = 2;
  for (const auto& [name, values] : on_ranks(run, 4)) expect_same(values, first.at(name), name);
}

// Largest relative difference over all results.
double difference(const Results& actual, const Results& expected) {
  double worst = 0;
  for (const auto& [name, values] : expected) {
    double error = 0;
    double size = 1e-300;
    for (int64_t i = 0; i < values.size(); ++i) {
      const double x = actual.at(name)[i] - values[i];
      error += x * x;
      size += values[i] * values[i];
    }
    worst = std::max(worst, std::sqrt(error / size));
  }
  return worst;
}

struct Fault {
  const char* name;
  MixerKind mixer;
  DroppedExchange dropped;
};

class PlantedFault : public testing::TestWithParam<Fault> {};

TEST_P(PlantedFault, IsNoticed) {
  const Fault& fault = GetParam();
  const LayerKind layer{fault.mixer, MlpKind::kDense};
  ShardedRun run = layout_run({layer, layer}, kLayouts[4]);
  run.config.linear_num_key_heads = 4;
  if (fault.dropped.tensor.starts_with("delta.heads")) run.options.delta_context = DeltaContext::kHeads;
  const Results one = run_sharded(run);
  run.dropped = &fault.dropped;
  for (const int context : {2, 4}) EXPECT_GT(difference(on_ranks(run, context), one), 1e-4) << context;
}

constexpr MixerKind kRule = MixerKind::kLinearAttention;
constexpr MixerKind kFull = MixerKind::kFullAttention;
INSTANTIATE_TEST_SUITE_P(
    ContextParallel, PlantedFault,
    testing::Values(Fault{"NoHalo", kRule, {"delta.conv_halo", Phase::kForward}},
                    Fault{"NoHaloGradient", kRule, {"delta.conv_halo", Phase::kBackward}},
                    Fault{"NoStateComposition", kRule, {"delta.state", Phase::kForward}},
                    Fault{"NoStateGradientComposition", kRule, {"delta.dstate", Phase::kBackward}},
                    Fault{"NoInputsByHead", kRule, {"delta.heads", Phase::kForward}},
                    Fault{"NoInputGradientsByHead", kRule, {"delta.heads", Phase::kBackward}},
                    Fault{"NoOutputsByHead", kRule, {"delta.heads_o", Phase::kForward}},
                    Fault{"NoOutputGradientsByHead", kRule, {"delta.heads_o", Phase::kBackward}},
                    Fault{"NoGatherOfKeysAndValues", kFull, {"attention.kv", Phase::kForward}},
                    Fault{"NoReductionOfKeyAndValueGradients", kFull, {"attention.kv", Phase::kBackward}},
                    Fault{"NoFirstHalfOfQueries", kFull, {"attention.q", Phase::kForward, 0}},
                    Fault{"NoSecondHalfOfQueries", kFull, {"attention.q", Phase::kForward, 1}},
                    Fault{"NoFirstHalfOfOutputs", kFull, {"attention.o", Phase::kForward, 0}},
                    Fault{"NoSecondHalfOfOutputs", kFull, {"attention.o", Phase::kForward, 1}},
                    Fault{"NoFirstHalfOfOutputGradients", kFull, {"attention.o", Phase::kBackward, 0}},
                    Fault{"NoSecondHalfOfOutputGradients", kFull, {"attention.o", Phase::kBackward, 1}},
                    Fault{"NoFirstHalfOfQueryGradients", kFull, {"attention.q", Phase::kBackward, 0}},
                    Fault{"NoSecondHalfOfQueryGradients", kFull, {"attention.q", Phase::kBackward, 1}}),
    [](const auto& fault) { return fault.param.name; });

}  // namespace
}  // namespace lathe::test
