// The lines of a text file, plain or gzip, one at a time: without line breaks (LF or CRLF) and without a
// UTF-8 mark at the file's start. Memory: the longest line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace lathe {

class LineReader {
 public:
  explicit LineReader(const std::string& path);  // data error: no such file, no plain file, unreadable
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // False at the end. Data error: read error, damaged or cut gzip stream.
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
