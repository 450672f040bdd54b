// Errors. Every error a user can cause names the place, the value, what was expected and what to do, and carries the
// exit code promised in docs (0 done, 1 internal, 2 usage or config, 3 data, 4 checkpoint or model, 5 gate, 75 retryable).
#pragma once

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace lathe {

enum class ErrorKind : int { kInternal = 1, kConfig = 2, kData = 3, kModel = 4, kGate = 5, kRetryable = 75 };

class Error : public std::runtime_error {
 public:
  // where: file, file:line, or option; what: the fault with its value and what was expected; hint: one action, may be "".
  Error(ErrorKind kind, const std::string& where, const std::string& what, std::string hint = "");

  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] int exit_code() const { return static_cast<int>(kind_); }
  [[nodiscard]] const std::string& hint() const { return hint_; }

 private:
  ErrorKind kind_;
  std::string hint_;
};

[[noreturn]] void config_error(const std::string& where, const std::string& what, const std::string& hint = "");
[[noreturn]] void data_error(const std::string& where, const std::string& what, const std::string& hint = "");
[[noreturn]] void model_error(const std::string& where, const std::string& what, const std::string& hint = "");
[[noreturn]] void retryable_error(const std::string& where, const std::string& what, const std::string& hint = "");

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}

// The name of `candidates` nearest to `word` by edit distance, or "" if none is near.
template <typename Range>
[[nodiscard]] std::string nearest_name(const std::string& word, const Range& candidates);
[[nodiscard]] int edit_distance(const std::string& a, const std::string& b);

template <typename Range>
std::string nearest_name(const std::string& word, const Range& candidates) {
  std::string best;
  int best_distance = static_cast<int>(word.size()) / 2 + 2;
  for (const auto& candidate : candidates) {
    const std::string name(candidate);
    const int distance = edit_distance(word, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

}  // namespace lathe

// An invariant of ours: failing it is a bug (exit 1). Never reachable by user input.
#define LATHE_CHECK(condition, ...)                                                                   \
  do {                                                                                                \
    if (!(condition)) [[unlikely]]                                                                    \
      ::lathe::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__));    \
  } while (false)
