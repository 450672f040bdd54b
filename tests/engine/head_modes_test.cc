// The head's programs inside whole steps: they agree, and what does not train is left alone.
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

struct HeadChoice {
  const char* name;
  HeadMode mode;
  bool known;
};
constexpr HeadChoice kChoices[] = {{"chunked", HeadMode::kChunked, false},
                                   {"local", HeadMode::kLocal, false},
                                   {"fused", HeadMode::kFused, false},
                                   {"known cotangent", HeadMode::kFused, true}};

EngineOptions options_of(const HeadChoice& choice) {
  EngineOptions options = tiny_options();
  options.head_mode = choice.mode;
  options.known_cotangent = choice.known;
  options.head_chunk = 7;
  return options;
}

std::vector<MicroBatch> batches_of(const ModelConfig& config) {
  return tiny_batches(random_trajectories(config, {9, 23, 2, 14, 31}, 3), {.rows = 2, .row_length = 64},
                      true);
}

using Gradients = std::vector<std::vector<double>>;

double dot(const Gradients& a, const Gradients& b) {
  double sum = 0;
  for (size_t p = 0; p < a.size(); ++p) {
    for (size_t i = 0; i < a[p].size(); ++i) sum += a[p][i] * b[p][i];
  }
  return sum;
}

TEST(HeadModes, PolicyMetricsOfTheFirstStepAgree) {
  const ModelConfig config = tiny_config(hybrid_layers());
  std::map<std::string, double> expected;
  for (const HeadChoice& choice : kChoices) {
    TinyEngine tiny(config, cpu_f32(2), options_of(choice));
    const StepResult result = tiny.step(batches_of(config));
    for (const auto& [name, value] : loss_metrics({}, result.stats, result.denominator)) {
      if (name.rfind("policy/", 0) != 0) continue;
      if (expected.count(name) == 0) expected[name] = value;
      EXPECT_NEAR(value, expected[name], 1e-5 * std::abs(expected[name])) << choice.name << " " << name;
    }
  }
  EXPECT_NE(expected.at("policy/loss"), 0);
  EXPECT_NE(expected.at("policy/entropy"), 0);
}

// A table that is embedding and head has the sum of the gradients that the two have apart.
TEST(HeadModes, ATiedTableHasOneGradient) {
  for (const HeadChoice& choice : kChoices) {
    const auto gradients = [&](bool tied) {
      const ModelConfig config = tiny_config(hybrid_layers(), tied);
      TinyEngine tiny(config, cpu_f32(2), options_of(choice));
      std::map<ParameterRole, std::vector<double>> out;
      const auto& parameters = tiny.engine().store().parameters();
      if (!tied) {
        tiny.engine().device_thread().run([&] {
          size_t from = 0;
          while (parameters[from].spec->role != ParameterRole::kEmbedding) ++from;
          std::vector<float> table(static_cast<size_t>(parameters[from].spec->shape.size()));
          tiny.engine().store().read_value(from, 0, table);
          for (size_t p = 0; p < parameters.size(); ++p) {
            if (parameters[p].spec->role == ParameterRole::kLmHead)
              tiny.engine().store().write_value(p, table);
          }
        });
      }
      const Gradients all = tiny.gradients(batches_of(config));
      for (size_t p = 0; p < all.size(); ++p) {
        if (parameters[p].spec->layer < 0) out[parameters[p].spec->role] = all[p];
      }
      return out;
    };
    const auto tied = gradients(true).at(ParameterRole::kEmbedding);
    const auto apart = gradients(false);
    for (size_t i = 0; i < tied.size(); ++i) {
      const double sum = apart.at(ParameterRole::kEmbedding)[i] + apart.at(ParameterRole::kLmHead)[i];
      ASSERT_NEAR(tied[i], sum, 1e-5 * std::max(1.0, std::abs(sum))) << choice.name << " element " << i;
    }
  }
}

TEST(HeadModes, AFrozenTableHasNoGradientAndChangesNoOther) {
  const ModelConfig config = tiny_config(hybrid_layers());
  for (const HeadChoice& choice : kChoices) {
    EngineOptions frozen = options_of(choice);
    frozen.trainable = {"layers", "embed"};
    TinyEngine all(config, cpu_f32(2), options_of(choice));
    TinyEngine part(config, cpu_f32(2), frozen);
    const Gradients expected = all.gradients(batches_of(config));
    const Gradients actual = part.gradients(batches_of(config));
    const auto& parameters = part.engine().store().parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].trains) {
        EXPECT_EQ(actual[p], expected[p]) << choice.name << " " << parameters[p].spec->name();
      } else {
        EXPECT_TRUE(parameters[p].gradient.empty()) << parameters[p].spec->name();
      }
    }
  }
}

// Not one step but 200: the directions of the gradients stay together, and so does the loss at the end.
TEST(HeadModes, FusedAndPlainStayTogetherOverManySteps) {
  const ModelConfig config = tiny_config(hybrid_layers(), true);
  const auto batches = batches_of(config);
  TinyEngine plain(config, cpu_f32(2), options_of(kChoices[0]));
  TinyEngine fused(config, cpu_f32(2), options_of(kChoices[3]));
  double worst = 0;
  double plain_loss = 0;
  double fused_loss = 0;
  double first_loss = 0;
  for (int step = 0; step < 200; ++step) {
    const Gradients a = plain.gradients(batches);
    const Gradients b = fused.gradients(batches);
    worst = std::max(worst, 1 - dot(a, b) / std::sqrt(dot(a, a) * dot(b, b)));
    plain_loss = plain.step({}).loss;
    fused_loss = fused.step({}).loss;
    if (step == 0) first_loss = plain_loss;
  }
  RecordProperty("largest_gap_of_cosines", fmt::format("{:.3g}", worst));
  RecordProperty("gap_of_final_losses", fmt::format("{:.3g}", std::abs(plain_loss - fused_loss)));
  EXPECT_LT(plain_loss, first_loss) << "nothing was learnt";
  EXPECT_LT(worst, 1e-3);
  EXPECT_LT(std::abs(plain_loss - fused_loss), 1e-3 * std::abs(plain_loss - first_loss));
}

}  // namespace
}  // namespace lathe::test
