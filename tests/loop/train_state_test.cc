#include "lathe/loop/train_state.h"

#include <filesystem>

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
                .find("which is no count"),
            std::string::npos);
}

}  // namespace
}  // namespace lathe
