#include "lathe/loop/train_state.h"

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/temp_folder.h"

namespace lathe {
namespace {

using test::TempFolder;

// A count that is cut, wrapped or beyond the range of its type would go on from another place in silence.
TEST(TrainState, CountsAreWholeAndNotNegative) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "trainer");
  write_train_state(folder.path(), TrainState{});
  const auto text = nlohmann::json::parse(test::bytes_of_file(folder / "trainer/state.json"));
  for (const char* key : {"step", "micro_batches", "applied_steps", "seed"}) {
    for (const char* value : {"1.5", "1e300", "-1", "\"1\"", "null", "true", "[]"}) {
      auto changed = text;
      changed[key] = nlohmann::json::parse(value);
      folder.write("trainer/state.json", changed.dump());
      const std::string fault =
          test::error_of(ErrorKind::kModel, [&] { static_cast<void>(read_train_state(folder.path())); });
      EXPECT_NE(fault.find(std::string(key) + " is "), std::string::npos)
          << key << " " << value << ": " << fault;
    }
  }
  auto changed = text;
  changed["step"] = uint64_t{1} << 63;
  folder.write("trainer/state.json", changed.dump());
  EXPECT_NE(test::error_of(ErrorKind::kModel, [&] { static_cast<void>(read_train_state(folder.path())); })
                .find("step is 9223372036854775808, expected at most 9223372036854775807"),
            std::string::npos);
}

class ChangedState : public ::testing::Test {
 protected:
  ChangedState() {
    std::filesystem::create_directories(path_ + "/trainer");
    TrainState state;
    state.counters = {.step = 12, .applied_steps = 11, .loss_window = {1}, .grad_norm_window = {2}};
    state.files = {"a.jsonl", "b.jsonl"};
    state.position.batch.file = 2;
    state.rolling = {{"mismatch", {0.5}}};
    state.settings = {{"run.seed", "0"}};
    write_train_state(path_, state);
    json_ = nlohmann::json::parse(test::bytes_of_file(path_ + "/trainer/state.json"));
  }
  std::string fault(const nlohmann::json& changed) const {
    folder_.write("step_000012/trainer/state.json", changed.dump());
    return test::error_of(ErrorKind::kModel, [&] { static_cast<void>(read_train_state(path_)); });
  }
  // key: a pointer as "/data/file".
  std::string with(const std::string& key, const nlohmann::json& value) const {
    nlohmann::json changed = json_;
    changed[nlohmann::json::json_pointer(key)] = value;
    return fault(changed);
  }

  TempFolder folder_;
  std::string path_ = folder_ / "step_000012";
  nlohmann::json json_;
};

TEST_F(ChangedState, ContradictionsAreRefusedWithKeyValueAndExpectation) {
  EXPECT_EQ(fault(json_), "no error");
  const std::vector<std::tuple<const char*, int64_t, const char*>> cases = {
      {"/step", 13, "step is 13, expected 12 as the name of the folder step_000012 says"},
      {"/micro_batches", 2, "micro_batches is 2, expected 0 as the name of the folder step_000012 says"},
      {"/applied_steps", 13, "applied_steps is 13, expected at most step, 12"},
      {"/step_micro_batches", 4, "step_micro_batches is 4, expected 0, because micro_batches is 0"},
      {"/data/file", 3, "data.file is 3, expected at most 2: data.files has 2"},
      {"/data/batch", 1, "data.file is 2, expected at most 1: data.files has 2"},
      {"/data/iteration", 1, "data.file is 2, expected at most 1: data.files has 2"},
      {"/data/file_bytes", 7, "data.file_bytes is 7, expected 0 where no file is in use"},
  };
  for (const auto& [key, value, expected] : cases) {
    const std::string text = with(key, value);
    EXPECT_NE(text.find(expected), std::string::npos) << key << ": " << text;
    EXPECT_NE(text.find("state.json"), std::string::npos) << text;
    EXPECT_NE(text.find(" | remove this checkpoint's folder"), std::string::npos) << text;
  }
}

TEST_F(ChangedState, OfOtherTypesIsRefusedInTheSameWords) {
  const std::vector<std::tuple<const char*, const char*, const char*>> cases = {
      {"/lathe", "1", "lathe is 1, expected a string"},
      {"/loss_window", "[1, null]", "loss_window[] is null, expected a number"},
      {"/grad_norm_window", "{}", "grad_norm_window is {}, expected a list"},
      {"/data", "[1, 2]", "data is [1,2], expected an object"},
      {"/data/files", "[\"a\", 3]", "data.files[] is 3, expected a string"},
      {"/rolling", "{\"mismatch\": 1}", "rolling.mismatch is 1, expected a list"},
      {"/settings", "{\"run.seed\": 0}", "settings.run.seed is 0, expected a string"},
      {"/settings", "[]", "settings is [], expected an object"},
  };
  for (const auto& [key, value, expected] : cases) {
    const std::string text = with(key, nlohmann::json::parse(value));
    EXPECT_NE(text.find(expected), std::string::npos) << key << ": " << text;
    EXPECT_EQ(text.find("json.exception"), std::string::npos) << text;
  }
  nlohmann::json changed = json_;
  changed["data"].erase("epoch");
  EXPECT_NE(fault(changed).find("data.epoch is missing, expected a value"), std::string::npos)
      << fault(changed);
  EXPECT_NE(fault(nlohmann::json::array()).find("the file is [], expected an object"), std::string::npos);
}

}  // namespace
}  // namespace lathe
