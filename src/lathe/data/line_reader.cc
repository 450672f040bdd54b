#include "lathe/data/line_reader.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <zlib.h>

#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace {

constexpr unsigned kBufferBytes = 1U << 18U;
constexpr const char* kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

struct LineReader::Stream {
  explicit Stream(gzFile opened) : file(opened), buffer(kBufferBytes) {}
  ~Stream() { gzclose(file); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  gzFile file;
  std::vector<char> buffer;
  size_t begin = 0;
  size_t end = 0;

  // False at the end of the file.
  bool fill(const std::string& path) {
    const int got = gzread(file, buffer.data(), kBufferBytes);
    int code = Z_OK;
    const char* message = gzerror(file, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      data_error(path, fmt::format("cannot be read: {}", code == Z_ERRNO ? std::strerror(errno) : message),
                 code == Z_ERRNO ? "" : "is the gzip file complete? test it with gzip -t");
    }
    begin = 0;
    end = static_cast<size_t>(got);
    return got > 0;
  }
};

LineReader::LineReader(const std::string& path) : path_(path) {
  const std::string kind = other_than_file(path);
  if (!kind.empty()) {
    data_error(path, fmt::format("is {}, expected a rollout file", kind),
               kind == "a folder" ? "give one of its files" : "write the rollouts to a file first");
  }
  errno = 0;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    data_error(path, fmt::format("cannot be opened: {}", std::strerror(errno)),
               "check the path of the rollouts");
  }
  stream_ = std::make_unique<Stream>(file);
}

LineReader::~LineReader() = default;

bool LineReader::next(std::string& line) {
  line.clear();
  bool any = false;
  for (;;) {
    Stream& s = *stream_;
    if (s.begin == s.end && !s.fill(path_)) break;
    any = true;
    const char* start = s.buffer.data() + s.begin;
    const void* found = std::memchr(start, '\n', s.end - s.begin);
    const size_t length =
        found == nullptr ? s.end - s.begin : static_cast<size_t>(static_cast<const char*>(found) - start);
    line.append(start, length);
    s.begin += length + (found == nullptr ? 0 : 1);
    if (found != nullptr) break;
  }
  if (!any) return false;
  ++line_number_;
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line_number_ == 1 && line.starts_with(kByteOrderMark)) line.erase(0, std::strlen(kByteOrderMark));
  return true;
}

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace lathe
