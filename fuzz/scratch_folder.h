// A folder below the system's temporary one (TMPDIR), removed with the object: the parsers under test open paths.
#pragma once

#include <string>
#include <string_view>

namespace lathe::fuzz {

class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // Writes a file of the folder (or of a folder in it) anew and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const;

 private:
  std::string path_;
};

}  // namespace lathe::fuzz
