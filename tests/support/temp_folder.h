// A folder that is removed with the object, files in it, and the error that a call throws.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include <gtest/gtest.h>
#include <unistd.h>

#include "lathe/core/error.h"

namespace lathe::test {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lathe_test_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Returns the path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  // A copy of a folder's files, writable.
  std::string copy_of(const std::string& folder, const std::string& name) const {
    std::string to = path_ + "/" + name;
    std::filesystem::create_directories(to);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      const auto file = std::filesystem::path(to) / entry.path().filename();
      std::filesystem::copy_file(entry.path(), file);
      std::filesystem::permissions(file, std::filesystem::perms::owner_write,
                                   std::filesystem::perm_options::add);
    }
    return to;
  }

 private:
  std::string path_;
};

inline std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The message and hint of the lathe::Error that `call` throws, "no error" if none; the kind must be as given.
template <typename Call>
std::string error_of(ErrorKind kind, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), static_cast<int>(kind)) << error.what();
    return std::string(error.what()) + (error.hint().empty() ? "" : " | " + error.hint());
  }
  return "no error";
}

}  // namespace lathe::test
