#include "lathe/io/files.h"

#include <gtest/gtest.h>

#include "lathe/core/error.h"

#include "support/temp_folder.h"

namespace lathe {
namespace {

using test::bytes_of_file;
using test::error_of;
using test::TempFolder;

TEST(Files, AppearWholeOrNotAtAll) {
  const TempFolder temp;
  {
    AtomicFileWriter writer(temp / "a");
    writer.write("half", 4);
    EXPECT_FALSE(file_exists(temp / "a"));
  }
  EXPECT_TRUE(list_files(temp.path()).empty());
  write_file_atomically(temp / "a", "first");
  write_file_atomically(temp / "a", "second");
  EXPECT_EQ(bytes_of_file(temp / "a"), "second");
  copy_file_atomically(temp / "a", temp / "b");
  EXPECT_EQ(read_file(temp / "b"), "second");
  EXPECT_EQ(list_files(temp.path()), (std::vector<std::string>{"a", "b"}));
}

TEST(Files, AFullDiskIsRetryable) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const TempFolder temp;
  std::filesystem::create_symlink("/dev/full", temp / "a.partial");
  const std::string fault =
      error_of(ErrorKind::kRetryable, [&] { write_file_atomically(temp / "a", std::string(100000, 'x')); });
  EXPECT_EQ(fault, temp /
                       "a: cannot be written: No space left on device | "
                       "free some space, then run the same command again");
  EXPECT_FALSE(file_exists(temp / "a"));
}

TEST(Files, NameWhatCannotBeRead) {
  const TempFolder temp;
  EXPECT_EQ(error_of(ErrorKind::kModel, [&] { return read_file(temp / "x"); }),
            temp / "x: no such file | check the path");
  EXPECT_EQ(error_of(ErrorKind::kModel, [&] { return read_file(temp.path()); }),
            temp.path() + ": is a folder, expected a file | copy it to a file first");
  EXPECT_EQ(error_of(ErrorKind::kModel, [&] { return read_file(temp.write("big", "12345"), 4); }),
            temp / "big: is larger than 4 bytes | is it the file you meant?");
}

TEST(Files, JsonIsCheckedForFaultsAndDuplicates) {
  const auto fault = [](const std::string& text) {
    return error_of(ErrorKind::kModel, [&] { check_json("f", text); });
  };
  EXPECT_EQ(fault(R"({"a":1,"b":{"a":[{"a":2},{"a":3}]}})"), "no error");
  EXPECT_EQ(fault(R"({"a":1,"b":{"c":1,"c":2}})"),
            "f: the key \"c\" appears twice | is the file complete? mend it, or get it again");
  EXPECT_EQ(fault("{\"a\":1} x"),
            "f: is not JSON (fault at byte 9) | is the file complete? mend it, or get it again");
  EXPECT_EQ(fault(std::string(100000, '[')),
            "f: is nested more than 32 levels deep | is the file complete? mend it, or get it again");
}

}  // namespace
}  // namespace lathe
