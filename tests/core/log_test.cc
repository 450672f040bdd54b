#include "lathe/core/log.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

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

// stderr in a file while it lives.
class StderrInFile {
 public:
  StderrInFile() : file_(std::tmpfile()), kept_(::dup(STDERR_FILENO)) {
    ::dup2(::fileno(file_), STDERR_FILENO);
  }
  ~StderrInFile() {
    ::dup2(kept_, STDERR_FILENO);
    ::close(kept_);
    std::fclose(file_);
  }
  StderrInFile(const StderrInFile&) = delete;
  StderrInFile& operator=(const StderrInFile&) = delete;

  [[nodiscard]] std::string text() const {
    std::string text(1 << 16, '\0');
    text.resize(
        static_cast<size_t>(std::max<ssize_t>(::pread(::fileno(file_), text.data(), text.size(), 0), 0)));
    return text;
  }
  // Whether the text comes within a minute.
  [[nodiscard]] bool shows(const std::string& wanted) const {
    for (int i = 0; i < 60000; ++i) {
      if (text().find(wanted) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  std::FILE* file_;
  int kept_;
};

constexpr ProgressTimes kAtOnce{.show_after = 0, .line_every = 0, .quiet = 3600};

TEST(Log, TheBarIsTakenAwayBeforeALineAndAtTheEnd) {
  const StderrInFile captured;
  {
    Log log(true, kAtOnce, 0.001);
    const Activity activity = log.activity("loading", 4, "tensors");
    activity.advance();
    ASSERT_TRUE(captured.shows("\rloading [#####---------------] 1/4 tensors")) << captured.text();
    log.info("a line");
    ASSERT_TRUE(captured.shows("\r\x1b[KI a line\n")) << captured.text();
    activity.advance();
    ASSERT_TRUE(captured.shows("\rloading [##########----------] 2/4 tensors")) << captured.text();
  }
  EXPECT_TRUE(captured.text().ends_with("\r\x1b[K")) << captured.text();
}

TEST(Log, TheBarGoesWithItsActivity) {
  const StderrInFile captured;
  Log log(true, kAtOnce, 0.001);
  {
    const Activity activity = log.activity("loading", 4, "tensors");
    ASSERT_TRUE(captured.shows("0/4 tensors"));
  }
  EXPECT_TRUE(captured.text().ends_with("\r\x1b[K")) << captured.text();
}

TEST(Log, WithoutATerminalThereAreLinesAndNoBar) {
  const StderrInFile captured;
  Log log(false, kAtOnce, 0.001);
  const Activity activity = log.activity("loading", 4, "tensors");
  activity.advance();
  EXPECT_TRUE(captured.shows("I loading: 1/4 tensors")) << captured.text();
  EXPECT_EQ(captured.text().find('\r'), std::string::npos);
}

TEST(Log, SaysThatNothingHappens) {
  const StderrInFile captured;
  Log log(false, {.show_after = 3600, .line_every = 3600, .quiet = 0.01}, 0.001);
  const Activity activity = log.activity("waiting");
  EXPECT_TRUE(captured.shows("W nothing happened for 0 s; busy with: waiting\n")) << captured.text();
}

TEST(Log, AStoppedReaderOfStderrHoldsUpNoDisplay) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const int kept = ::dup(STDERR_FILENO);
  ASSERT_EQ(::fcntl(pipe_ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string block(4096, 'x');
  while (::write(pipe_ends[1], block.data(), block.size()) > 0) continue;  // until it is full
  ASSERT_EQ(::fcntl(pipe_ends[1], F_SETFL, 0), 0);
  ::dup2(pipe_ends[1], STDERR_FILENO);
  const auto start = std::chrono::steady_clock::now();
  {
    Log log(true, {.show_after = 0, .line_every = 0, .quiet = 0.01}, 0.001);
    const Activity activity = log.activity("loading", 4, "tensors");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    activity.advance();
  }
  const auto taken = std::chrono::steady_clock::now() - start;
  ::dup2(kept, STDERR_FILENO);
  for (const int descriptor : {kept, pipe_ends[0], pipe_ends[1]}) ::close(descriptor);
  EXPECT_LT(taken, std::chrono::seconds(2));
}

}  // namespace
}  // namespace lathe
