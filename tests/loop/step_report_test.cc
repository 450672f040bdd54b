#include "lathe/loop/step_report.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lathe {
namespace {
namespace fs = std::filesystem;

TEST(StepReport, WhyTheHeadTookTwoPassesIsInTheFirstLineAndOnceInTheLog) {
  const fs::path root = fs::path(::testing::TempDir()) / "lathe_step_report";
  fs::remove_all(root);
  Log log(false);
  {
    RunConfig config;
    config.run.steps = 3;
    RunFolder folder(root.string(), "auto", log);
    folder.begin("run: {}\n");
    const Device device(
        {.name = "plan", .threads = 1, .isa = Isa::kAvx2, .poison = false, .float_type = DType::kF32});
    StepReporter reporter(config, device, folder, log);
    for (int64_t step = 1; step <= 3; ++step) {
      StepResult result;
      result.step = step;
      result.head_restarts = step < 3 ? 2 : 0;
      reporter.report(result, {}, {{"head.mode", "fused: as given"}});
    }
  }
  std::ifstream metrics(root / "metrics.jsonl");
  for (int step = 1; step <= 3; ++step) {
    std::string text;
    std::getline(metrics, text);
    const auto line = nlohmann::json::parse(text);
    EXPECT_EQ(line.at("head/restarts"), step < 3 ? 2 : 0);
    ASSERT_EQ(line.contains("head.restarts"), step == 1) << text;
    if (step == 1) {
      EXPECT_EQ(line.at("head.restarts"),
                "2 of the step's micro-batches took two passes: their logits may not be finite");
    }
  }
  std::ifstream file(root / "log.txt");
  std::stringstream text;
  text << file.rdbuf();
  const size_t said = text.str().find("took two passes");
  EXPECT_NE(said, std::string::npos);
  EXPECT_EQ(text.str().find("took two passes", said + 1), std::string::npos);
  fs::remove_all(root);
}

}  // namespace
}  // namespace lathe
