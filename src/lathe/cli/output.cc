#include "lathe/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lathe/core/error.h"

namespace lathe {

void Output::text(const std::string& text) {
  if (error_ != 0) return;
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) error_ = errno != 0 ? errno : EIO;
}

void Output::line(const std::string& text) {
  this->text(text + '\n');
}

void Output::finish() {
  if (error_ == 0 || error_ == EPIPE) return;
  retryable_error(
      "stdout", fmt::format("cannot be written: {}", std::strerror(error_)),  // NOLINT(concurrency-mt-unsafe)
      "free some space, or write somewhere else");
}

}  // namespace lathe
