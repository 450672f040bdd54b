#include "lathe/io/files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lathe/core/error.h"

namespace lathe {
namespace {

std::string system_words(int code) {
  return std::error_code(code, std::generic_category()).message();
}

// Closes on every way out.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

size_t read_some(const Descriptor& file, const std::string& path, char* to, size_t bytes) {
  for (;;) {
    const ssize_t got = ::read(file.get(), to, bytes);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) model_error(path, "cannot be read: " + system_words(errno));
  }
}

[[noreturn]] void write_error(const std::string& path, const char* action, int code) {
  const std::string what = fmt::format("cannot be {}: {}", action, system_words(code));
  if (code == ENOSPC || code == EDQUOT) {
    retryable_error(path, what, "free some space, then run the same command again");
  }
  config_error(path, what, "choose a place that you may write to");
}

int open_to_read(const std::string& path) {
  const std::string kind = other_than_file(path);
  if (!kind.empty())
    model_error(path, fmt::format("is {}, expected a file", kind), "copy it to a file first");
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) model_error(path, "no such file", "check the path");
  if (descriptor < 0)
    model_error(path, "cannot be opened: " + system_words(errno), "check that you may read it");
  return descriptor;
}

}  // namespace

AtomicFileWriter::AtomicFileWriter(const std::string& path) : path_(path), partial_path_(path + ".partial") {
  struct stat status {};
  if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) partial_path_ = path_;
  // A pipe that bears the name of the partial file is an error: without O_NONBLOCK it would wait for a reader.
  const int create = partial_path_ == path_ ? 0 : O_CREAT | O_TRUNC | O_NONBLOCK;
  descriptor_ = ::open(partial_path_.c_str(), O_WRONLY | create | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("created");
}

AtomicFileWriter::~AtomicFileWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (partial_path_ != path_) ::unlink(partial_path_.c_str());
}

void AtomicFileWriter::fail(const char* action) const {
  write_error(path_, action, errno);
}

void AtomicFileWriter::write(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, from, std::min(bytes, size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written");
    from += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFileWriter::commit() {
  if (partial_path_ == path_) {
    ::close(std::exchange(descriptor_, -1));
    return;
  }
  if (::fsync(descriptor_) != 0) fail("flushed to disk");
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) fail("renamed into place");
  ::close(descriptor_);
  descriptor_ = -1;
  const auto parent = std::filesystem::path(path_).parent_path();
  sync_folder(parent.empty() ? "." : parent.string());
}

SharedFileWriter::SharedFileWriter(const std::string& path, uint64_t bytes, const WriteShare& share)
    : path_(path), partial_path_(path + ".partial"), share_(share) {
  const auto open = [&](int create) {
    descriptor_ = ::open(partial_path_.c_str(), O_WRONLY | create | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail("created");
  };
  if (share_.leads) {
    open(O_CREAT | O_TRUNC);
    if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail("made as long as it will be");
  }
  share_.barrier();
  if (!share_.leads) open(0);
}

SharedFileWriter::~SharedFileWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (share_.leads) ::unlink(partial_path_.c_str());
}

void SharedFileWriter::fail(const char* action) const {
  write_error(path_, action, errno);
}

void SharedFileWriter::write_at(uint64_t offset, const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written =
        ::pwrite(descriptor_, from, std::min(bytes, size_t{1} << 30), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written");
    from += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
}

void SharedFileWriter::commit() {
  if (::fsync(descriptor_) != 0) fail("flushed to disk");
  share_.barrier();
  ::close(std::exchange(descriptor_, -1));
  if (share_.leads) {
    if (::rename(partial_path_.c_str(), path_.c_str()) != 0) fail("renamed into place");
    const auto parent = std::filesystem::path(path_).parent_path();
    sync_folder(parent.empty() ? "." : parent.string());
  }
  share_.barrier();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFileWriter writer(path);
  writer.write(text.data(), text.size());
  writer.commit();
}

void copy_file_atomically(const std::string& from, const std::string& to) {
  const Descriptor source(open_to_read(from));
  AtomicFileWriter writer(to);
  std::vector<char> buffer(size_t{1} << 20);
  while (const size_t got = read_some(source, from, buffer.data(), buffer.size()))
    writer.write(buffer.data(), got);
  writer.commit();
}

void create_folders(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) write_error(path, "created", code.value());
}

void rename_path(const std::string& from, const std::string& to) {
  std::error_code code;
  std::filesystem::rename(from, to, code);
  if (code) write_error(to, "renamed into place", code.value());
}

void remove_path(const std::string& path) {
  std::error_code code;
  std::filesystem::remove_all(path, code);
  if (code) write_error(path, "removed", code.value());
}

void sync_folder(const std::string& path) {
  // Some file systems cannot flush a folder; the rename has happened all the same.
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) static_cast<void>(::fsync(folder.get()));
}

std::string read_file(const std::string& path, size_t max_bytes) {
  const Descriptor file(open_to_read(path));
  std::string text;
  std::array<char, 65536> buffer;
  while (const size_t got = read_some(file, path, buffer.data(), buffer.size())) {
    text.append(buffer.data(), got);
    if (text.size() > max_bytes)
      model_error(path, fmt::format("is larger than {} bytes", max_bytes), "is it the file you meant?");
  }
  return text;
}

bool file_exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::string other_than_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return "";
  if (S_ISDIR(status.st_mode)) return "a folder";
  if (S_ISFIFO(status.st_mode)) return "a pipe";
  return S_ISSOCK(status.st_mode) ? "a socket" : "a device";
}

void check_plain_file(const std::string& path) {
  const std::string kind = other_than_file(path);
  if (kind.empty()) return;
  config_error(path, fmt::format("is {}, expected a file or nothing", kind),
               "remove it or choose another folder");
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return std::filesystem::equivalent(a, b, ignored);
}

bool folder_exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::vector<std::string> list_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code code;
  auto entry = std::filesystem::directory_iterator(folder, code);
  for (; !code && entry != std::filesystem::directory_iterator(); entry.increment(code)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) names.push_back(entry->path().filename().string());
  }
  if (code) model_error(folder, "cannot be listed: " + code.message());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lathe
