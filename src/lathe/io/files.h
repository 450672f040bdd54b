// Files as the rest of the project writes and reads them: whole or not at all. A writer writes beside the
// target, flushes to disk and renames; what it has written so far is removed when it is destroyed without
// commit(). A path that is a device or a pipe is written to directly. Errors of writing: a full disk (or quota) is a
// retryable error, anything else a config error (the path was the user's choice) with the path and the system's
// words. Errors of reading are model errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

class AtomicFileWriter {
 public:
  explicit AtomicFileWriter(const std::string& path);  // opens path + ".partial"
  ~AtomicFileWriter();
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;

  void write(const void* data, size_t bytes);
  void commit();  // fsync, rename, fsync of the folder

 private:
  [[noreturn]] void fail(const char* action) const;

  std::string path_;
  std::string partial_path_;
  int descriptor_ = -1;
};

// How several processes write files together, on a file system that they share: one of them leads, and all meet at the
// barrier. Alone: no barrier.
struct WriteShare {
  bool leads = true;
  std::function<void()> barrier;
  [[nodiscard]] bool alone() const { return !barrier; }
};

// One file of `bytes`, of which every process writes its parts; all make the same calls. The leading one creates and
// renames it.
class SharedFileWriter {
 public:
  SharedFileWriter(const std::string& path, uint64_t bytes, const WriteShare& share);
  ~SharedFileWriter();
  SharedFileWriter(const SharedFileWriter&) = delete;
  SharedFileWriter& operator=(const SharedFileWriter&) = delete;

  void write_at(uint64_t offset, const void* data, size_t bytes);
  void commit();  // all parts are on disk when it returns, and the file is there

 private:
  [[noreturn]] void fail(const char* action) const;

  std::string path_;
  std::string partial_path_;
  const WriteShare& share_;
  int descriptor_ = -1;
};

// A file of text in one go, as above.
void write_file_atomically(const std::string& path, std::string_view text);
// The bytes of `from` (links are followed) as `to`, as above.
void copy_file_atomically(const std::string& from, const std::string& to);
// Creates a folder and its parents, renames, removes with all it holds (nothing there is fine); errors as above.
void create_folders(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
void remove_path(const std::string& path);
// Flushes a folder's list of names to disk.
void sync_folder(const std::string& path);

// Model errors: missing, unreadable, no plain file, or larger than `max_bytes`.
[[nodiscard]] std::string read_file(const std::string& path, size_t max_bytes = size_t{1} << 30);
[[nodiscard]] bool file_exists(const std::string& path);
// What a path is instead of a plain file: "a folder", "a pipe", "a socket", "a device". "" for a plain file or a link
// to one, and where nothing is. To be asked before opening: opening a pipe waits for whoever writes to it.
[[nodiscard]] std::string other_than_file(const std::string& path);
// Config error if other_than_file(path) says anything: for files in folders of our own, which nobody meant to be one.
void check_plain_file(const std::string& path);
// Whether two paths are the same existing file, by links, hard links or spelling.
[[nodiscard]] bool same_file(const std::string& a, const std::string& b);
[[nodiscard]] bool folder_exists(const std::string& path);
// Names of the plain files (and links to such) of a folder, sorted. Model error if it cannot be read.
[[nodiscard]] std::vector<std::string> list_files(const std::string& folder);

// Checks the JSON text of a file before it is parsed: well formed, no key twice in one object, not nested
// beyond `max_depth`. Model error with `where`, the fault and its byte.
void check_json(const std::string& where, std::string_view text, int max_depth = 32);

}  // namespace lathe
