// One parsed JSON value, seen without the parser's types. Numbers may be the literals NaN, Infinity,
// -Infinity.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

enum class JsonKind : uint8_t { kNull, kBool, kInteger, kReal, kString, kArray, kObject };

// A view into a JsonDocument; valid while that lives and parses nothing else.
class JsonView {
 public:
  JsonView() = default;
  explicit JsonView(const void* value) : value_(value) {}

  [[nodiscard]] JsonKind kind() const;
  [[nodiscard]] bool is_number() const { return kind() == JsonKind::kInteger || kind() == JsonKind::kReal; }
  [[nodiscard]] bool boolean() const;
  // kInteger: written without point or exponent, in [-2^63, 2^64).
  [[nodiscard]] std::optional<int64_t> integer() const;  // nothing when it is no integer or does not fit
  [[nodiscard]] std::string integer_text() const;
  [[nodiscard]] double number() const;  // of any number
  [[nodiscard]] std::string_view string() const;
  [[nodiscard]] size_t size() const;                        // of an array or object
  [[nodiscard]] JsonView at(size_t index) const;            // element of an array
  [[nodiscard]] std::string_view name(size_t index) const;  // of an object's member
  [[nodiscard]] JsonView member(size_t index) const;
  // For messages: numbers and words as JSON, at most about 60 bytes; arrays and objects by their size.
  [[nodiscard]] std::string text() const;

 private:
  const void* value_ = nullptr;
};

struct JsonFault {
  size_t column = 0;  // 1-based byte
  std::string reason;
};

class JsonDocument {
 public:
  JsonDocument();
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  // Nothing when `text` is one JSON value in valid UTF-8. Any depth of nesting is safe.
  [[nodiscard]] std::optional<JsonFault> parse(std::string_view text);
  [[nodiscard]] JsonView root() const;

 private:
  struct Parsed;
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace lathe
