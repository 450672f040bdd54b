// The lines of a text file, plain or gzip, one at a time: without line breaks (LF or CRLF) and without a
// UTF-8 mark at the file's start. Memory: the longest line. Of a file that grows the first bytes can be read alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace lathe {

class LineReader {
 public:
  static constexpr int64_t kWholeFile = -1;
  // bytes: how many of the file's (of a gzip file: compressed ones) are read. Data error: no such file, no plain file,
  // unreadable.
  explicit LineReader(const std::string& path, int64_t bytes = kWholeFile);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // False at the end. Data error: read error, fewer bytes than asked for, damaged or cut gzip stream.
  [[nodiscard]] bool next(std::string& line);
  [[nodiscard]] int64_t line_number() const { return line_number_; }  // 1-based, of the last line

 private:
  struct Stream;
  std::string path_;
  std::unique_ptr<Stream> stream_;
  int64_t line_number_ = 0;
};

[[nodiscard]] bool is_blank(const std::string& line);

}  // namespace lathe
