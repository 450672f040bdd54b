#include "fuzz/scratch_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace lathe::fuzz {
namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() {
  path_ = (fs::temp_directory_path() / "lathe_fuzz_XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no folder for scratch files");
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string ScratchFolder::write(const std::string& name, std::string_view bytes) const {
  std::string file = path_ + "/" + name;
  fs::create_directories(fs::path(file).parent_path());
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + file);
  return file;
}

}  // namespace lathe::fuzz
