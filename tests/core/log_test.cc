#include "lathe/core/log.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "lathe/core/error.h"

namespace lathe {
namespace {

TEST(Log, WritesToItsFile) {
  const auto folder = std::filesystem::temp_directory_path() / "lathe_log_test";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "log.txt").string();
  std::filesystem::remove(path);
  {
    Log log(false);
    log.info("before the file");
    log.add_file(path);
    log.info("step {}", 3);
    log.warning("{} skipped", "it");
  }
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str().find("before"), std::string::npos);
  EXPECT_NE(text.str().find(" I step 3\n"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find(" W it skipped\n"), std::string::npos) << text.str();
  std::filesystem::remove_all(folder);
}

TEST(Log, AFileThatCannotBeOpenedIsAConfigError) {
  Log log(false);
  try {
    log.add_file("/proc/no/such/folder/log.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  }
}

}  // namespace
}  // namespace lathe
