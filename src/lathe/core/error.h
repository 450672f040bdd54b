// Errors. Every error a user can cause names the place, the value, what was expected and what to do, and
// carries the exit code promised in docs (0 done, 1 internal, 2 usage or config, 3 data, 4 checkpoint or
// model, 5 gate, 75 retryable).
#pragma once

#include <concepts>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace lathe {

enum class ErrorKind : int { kInternal = 1, kConfig = 2, kData = 3, kModel = 4, kGate = 5, kRetryable = 75 };

class Error : public std::runtime_error {
 public:
  // where: file, file:line, or option; what: the fault with its value and what was expected; hint: one
  // action, may be "".
  Error(ErrorKind kind, const std::string& where, const std::string& what, std::string hint = "");

  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] int exit_code() const { return static_cast<int>(kind_); }
  [[nodiscard]] const std::string& hint() const { return hint_; }

 private:
  ErrorKind kind_;
  std::string hint_;
};

[[noreturn]] void config_error(const std::string& where, const std::string& what,
                               const std::string& hint = "");
[[noreturn]] void data_error(const std::string& where, const std::string& what, const std::string& hint = "");
[[noreturn]] void model_error(const std::string& where, const std::string& what,
                              const std::string& hint = "");
[[noreturn]] void retryable_error(const std::string& where, const std::string& what,
                                  const std::string& hint = "");

namespace detail {

// A value in the message of a failed check. The formatting happens out of line: files that are compiled once
// per instruction set must not emit inline functions of a library, whose copies the linker would share.
struct CheckValue {
  enum class Kind : char { kSigned, kUnsigned, kFloat, kText };
  Kind kind = Kind::kSigned;
  long long integer = 0;
  double number = 0;
  std::string_view text;

  template <std::integral T>
  [[gnu::always_inline]] explicit CheckValue(T value)
      : kind(std::signed_integral<T> ? Kind::kSigned : Kind::kUnsigned),
        integer(static_cast<long long>(value)) {}
  template <std::floating_point T>
  [[gnu::always_inline]] explicit CheckValue(T value)
      : kind(Kind::kFloat), number(static_cast<double>(value)) {}
  [[gnu::always_inline]] explicit CheckValue(const char* value)
      : kind(Kind::kText), text(value, __builtin_strlen(value)) {}
  [[gnu::always_inline]] explicit CheckValue(std::string_view value) : kind(Kind::kText), text(value) {}
  explicit CheckValue(const std::string& value) : kind(Kind::kText), text(value) {}
};
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* format,
                               std::initializer_list<CheckValue> values);
template <typename... Values>
[[noreturn, gnu::always_inline]] inline void check_failed_with(const char* file, int line,
                                                               const char* condition, const char* format,
                                                               const Values&... values) {
  check_failed(file, line, condition, format, {CheckValue(values)...});
}

}  // namespace detail

// The name of `candidates` nearest to `word` by edit distance, or "" if none is near.
template <typename Range>
[[nodiscard]] std::string nearest_name(const std::string& word, const Range& candidates);
[[nodiscard]] int edit_distance(const std::string& a, const std::string& b);

template <typename Range>
std::string nearest_name(const std::string& word, const Range& candidates) {
  std::string best;
  int best_distance = static_cast<int>(word.size()) / 2 + 2;
  for (const auto& candidate : candidates) {
    const std::string name(candidate);  // NOLINT(performance-unnecessary-copy-initialization): may be a view
    const int distance = edit_distance(word, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

}  // namespace lathe

// An invariant of ours: failing it is a bug (exit 1). Never reachable by user input. The message is a fmt
// format string with numbers and texts as arguments.
#define LATHE_CHECK(condition, ...)                                                       \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::lathe::detail::check_failed_with(__FILE__, __LINE__, #condition, "" __VA_ARGS__); \
  } while (false)
