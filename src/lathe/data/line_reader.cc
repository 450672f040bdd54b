#include "lathe/data/line_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18U;
constexpr const char* kByteOrderMark = "\xEF\xBB\xBF";
constexpr unsigned char kGzipMark[] = {0x1F, 0x8B};  // NOLINT(modernize-avoid-c-arrays)

// The first bytes of a file.
class Bytes {
 public:
  Bytes(const std::string& path, int64_t count) : path_(path), count_(count) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) {
      data_error(path, fmt::format("cannot be opened: {}", std::strerror(errno)),
                 "check the path of the rollouts");
    }
  }
  ~Bytes() { ::close(descriptor_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  // 0 at the end.
  size_t read(char* to, size_t most) {
    if (count_ >= 0) most = std::min(most, static_cast<size_t>(count_ - done_));
    if (most == 0) return 0;
    ssize_t got = 0;
    do {
      got = ::read(descriptor_, to, most);
    } while (got < 0 && errno == EINTR);
    if (got < 0) data_error(path_, fmt::format("cannot be read: {}", std::strerror(errno)));
    if (got == 0 && count_ >= 0) {
      data_error(path_, fmt::format("ends after {} bytes, expected {}", done_, count_),
                 "do not change it while it is used; many ranks need a file system that they share");
    }
    done_ += got;
    return static_cast<size_t>(got);
  }

 private:
  const std::string& path_;
  int descriptor_;
  int64_t count_;  // -1: all
  int64_t done_ = 0;
};

}  // namespace

// What the file says: its bytes, or of a gzip file (also one of several members) what they unpack to.
struct LineReader::Stream {
  Stream(const std::string& file, int64_t count)
      : path(file), bytes(path, count), packed(kBufferBytes), buffer(kBufferBytes) {
    // A file is never cut between two reads of it: fewer than two bytes are the whole file.
    while (packed_end < sizeof(kGzipMark)) {
      const size_t got = bytes.read(packed.data() + packed_end, packed.size() - packed_end);
      if (got == 0) break;
      packed_end += got;
    }
    is_gzip = at_member();
    if (!is_gzip) return;
    constexpr int kGzipOnly = 16;
    LATHE_CHECK(inflateInit2(&inflater, MAX_WBITS + kGzipOnly) == Z_OK, "inflateInit2");
    in_member = true;
  }
  ~Stream() {
    if (is_gzip) inflateEnd(&inflater);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // False at the end of the file.
  bool fill() {
    begin = end = 0;
    if (!is_gzip) {
      std::swap(buffer, packed);
      end = std::exchange(packed_end, 0);
      if (end == 0) end = bytes.read(buffer.data(), buffer.size());
      return end > 0;
    }
    while (end == 0 && (in_member || next_member())) unpack();
    return end > 0;
  }

  std::string path;
  Bytes bytes;
  std::vector<char> packed;  // of a gzip file; at first the beginning of any
  size_t packed_begin = 0;
  size_t packed_end = 0;
  std::vector<char> buffer;
  size_t begin = 0;
  size_t end = 0;

 private:
  [[nodiscard]] bool at_member() const {
    return packed_end - packed_begin >= sizeof(kGzipMark) &&
           std::memcmp(packed.data() + packed_begin, kGzipMark, sizeof(kGzipMark)) == 0;
  }

  // At least `least` packed bytes are there, or the file ends.
  void fetch(size_t least) {
    std::memmove(packed.data(), packed.data() + packed_begin, packed_end - packed_begin);
    packed_end -= std::exchange(packed_begin, 0);
    while (packed_end < least) {
      const size_t got = bytes.read(packed.data() + packed_end, packed.size() - packed_end);
      if (got == 0) return;
      packed_end += got;
    }
  }

  // What follows the last member and is none counts for nothing, as gzip has it.
  bool next_member() {
    fetch(sizeof(kGzipMark));
    if (!at_member()) return false;
    in_member = true;
    return inflateReset(&inflater) == Z_OK;
  }

  void unpack() {
    if (packed_begin == packed_end) fetch(1);
    if (packed_begin == packed_end) fail("unexpected end of file");
    inflater.next_in = static_cast<Bytef*>(static_cast<void*>(packed.data() + packed_begin));
    inflater.avail_in = static_cast<uInt>(packed_end - packed_begin);
    inflater.next_out = static_cast<Bytef*>(static_cast<void*>(buffer.data()));
    inflater.avail_out = static_cast<uInt>(buffer.size());
    const int code = inflate(&inflater, Z_NO_FLUSH);
    packed_begin = packed_end - inflater.avail_in;
    end = buffer.size() - inflater.avail_out;
    if (code == Z_STREAM_END) in_member = false;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      fail(inflater.msg == nullptr ? "damaged" : inflater.msg);
  }

  [[noreturn]] void fail(const char* reason) const {
    data_error(path, fmt::format("cannot be read: {}", reason),
               "is the gzip file complete? test it with gzip -t");
  }

  bool is_gzip = false;
  bool in_member = false;
  z_stream inflater{};
};

LineReader::LineReader(const std::string& path, int64_t bytes) : path_(path) {
  const std::string kind = other_than_file(path);
  if (!kind.empty()) {
    data_error(path, fmt::format("is {}, expected a rollout file", kind),
               kind == "a folder" ? "give one of its files" : "write the rollouts to a file first");
  }
  stream_ = std::make_unique<Stream>(path, bytes);
}

LineReader::~LineReader() = default;

bool LineReader::next(std::string& line) {
  line.clear();
  bool any = false;
  for (;;) {
    Stream& s = *stream_;
    if (s.begin == s.end && !s.fill()) break;
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
