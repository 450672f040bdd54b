#include "lathe/loop/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lathe/io/files.h"

#include "support/temp_folder.h"

namespace lathe {
namespace {
namespace fs = std::filesystem;
using test::bytes_of_file;
using test::error_of;

CheckpointName full(int64_t step) {
  return {.step = step, .micro_batches = 0};
}
CheckpointName between(int64_t step, int64_t micro_batches) {
  return {.step = step, .micro_batches = micro_batches};
}

class CheckpointsTest : public ::testing::Test {
 protected:
  std::string write(const CheckpointName& name, int64_t keep = 2) const {
    return checkpoints_.write(
        name, keep, 1, [](const std::string& to) { std::ofstream(fs::path(to) / "config.json") << "{}"; });
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  test::TempFolder folder_;
  Checkpoints checkpoints_{folder_.path()};
};

TEST(CheckpointName, ReadsWhatItWritesAndNothingElse) {
  for (const CheckpointName& name : {full(0), full(12), between(12, 3), full(1234567), between(0, 12345)}) {
    EXPECT_EQ(parse_checkpoint_name(name.text()), name) << name.text();
  }
  EXPECT_EQ(full(12).text(), "step_000012");
  EXPECT_EQ(between(12, 3).text(), "step_000012-mb0003");
  for (const char* text :
       {"step_12", "step_", "step_00001x", "step_000012-mb0000", "step_000012-mb3", "latest",
        ".tmp_step_000012", "superseded_step_000012", "step_99999999999999999999"}) {
    EXPECT_FALSE(parse_checkpoint_name(text).has_value()) << text;
  }
  EXPECT_LT(full(12), between(12, 1));
  EXPECT_LT(between(12, 9), full(13));
}

TEST_F(CheckpointsTest, AreCompleteOrNotThere) {
  EXPECT_THROW(static_cast<void>(checkpoints_.write(full(1), 2, 1,
                                                    [](const std::string& to) {
                                                      std::ofstream(fs::path(to) / "config.json") << "{}";
                                                      throw std::runtime_error("disk full");
                                                    })),
               std::runtime_error);
  EXPECT_TRUE(names().empty());
  const std::string path = write(full(1));
  EXPECT_TRUE(fs::exists(fs::path(path) / "COMPLETE"));
  EXPECT_EQ(bytes_of_file(checkpoints_.path_of_latest()), "step_000001\n");
}

TEST_F(CheckpointsTest, KeepCountsFullOnesAndANewFullOneRemovesThoseInAStep) {
  for (const CheckpointName& name : {full(1), full(2), between(2, 1), between(2, 4)}) {
    static_cast<void>(write(name));
  }
  EXPECT_EQ(checkpoints_.complete(),
            (std::vector<CheckpointName>{full(1), full(2), between(2, 1), between(2, 4)}));
  EXPECT_EQ(bytes_of_file(checkpoints_.path_of_latest()), "step_000002-mb0004\n");
  static_cast<void>(write(full(3)));
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step_000002", "step_000003"}));
  static_cast<void>(write(full(4), 1));
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step_000004"}));
  static_cast<void>(write(full(5), 0));
  EXPECT_EQ(checkpoints_.complete().size(), 2U);
}

TEST_F(CheckpointsTest, AFolderWithoutItsMarkIsNoCheckpointAndIsWrittenOver) {
  fs::create_directories(folder_ / "step_000005");
  static_cast<void>(folder_.write("step_000005/model-00001-of-00009.safetensors", "half"));
  EXPECT_TRUE(checkpoints_.complete().empty());
  const std::string path = write(full(5));
  EXPECT_FALSE(fs::exists(fs::path(path) / "model-00001-of-00009.safetensors"));
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step_000005"}));
}

// As it may appear while the run goes on; see RunFolderTest.
TEST_F(CheckpointsTest, APipeAsLatestIsRefusedNotWrittenTo) {
  for (const char* name : {"latest", "latest.partial"}) {
    const std::string path = folder_ / name;
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const auto kept =
        fs::path(name).has_extension() ? -1 : ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const std::string fault = error_of(ErrorKind::kConfig, [&] { static_cast<void>(write(full(1))); });
    EXPECT_NE(fault.find("latest: "), std::string::npos) << fault;
    EXPECT_EQ(checkpoints_.complete(), (std::vector<CheckpointName>{full(1)}));
    if (kept >= 0) ::close(kept);
    fs::remove(path);
  }
}

TEST_F(CheckpointsTest, LeftoversOfKilledRunsGo) {
  static_cast<void>(write(full(1)));
  for (const char* name : {".tmp_step_000002", ".trash_step_000000"}) {
    fs::create_directories(folder_ / name);
    static_cast<void>(folder_.write(std::string(name) + "/COMPLETE", ""));
  }
  EXPECT_EQ(checkpoints_.complete(), (std::vector<CheckpointName>{full(1)}));
  checkpoints_.remove_leftovers();
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step_000001"}));
}

TEST_F(CheckpointsTest, TooLittleSpaceIsSaidWithBothNumbersBeforeAnythingIsWritten) {
  static_cast<void>(write(full(1)));
  const std::string fault = error_of(ErrorKind::kRetryable, [&] {
    static_cast<void>(
        checkpoints_.write(full(2), 1, uint64_t{1} << 60, [](const std::string& /*to*/) { FAIL(); }));
  });
  EXPECT_NE(fault.find("a checkpoint needs 1073741824.00 GiB, and "), std::string::npos) << fault;
  EXPECT_NE(fault.find(" are free"), std::string::npos) << fault;
  EXPECT_EQ(checkpoints_.complete(), (std::vector<CheckpointName>{full(1)}));
}

TEST_F(CheckpointsTest, ADiskThatFillsUpInTheMiddleLeavesTheOneBefore) {
  const std::string disk = folder_ / "disk";
  fs::create_directories(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "no permission to mount a small file system";
  }
  const Checkpoints checkpoints(disk);
  static_cast<void>(checkpoints.write(full(1), 1, 1, [](const std::string& /*to*/) {}));
  const std::string fault = error_of(ErrorKind::kRetryable, [&] {
    static_cast<void>(checkpoints.write(full(2), 1, 1, [](const std::string& to) {
      write_file_atomically((fs::path(to) / "big").string(), std::string(size_t{4} << 20, 'x'));
    }));
  });
  EXPECT_NE(fault.find("No space left"), std::string::npos) << fault;
  EXPECT_EQ(checkpoints.complete(), (std::vector<CheckpointName>{full(1)}));
  EXPECT_FALSE(fs::exists(disk + "/.tmp_step_000002"));
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

}  // namespace
}  // namespace lathe
