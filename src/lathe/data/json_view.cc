#include "lathe/data/json_view.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <rapidjson/document.h>
#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>

namespace lathe {
namespace {

constexpr unsigned kFlags = rapidjson::kParseNanAndInfFlag | rapidjson::kParseNumbersAsStringsFlag |
                            rapidjson::kParseValidateEncodingFlag | rapidjson::kParseIterativeFlag;
constexpr size_t kShownBytes = 60;

// Builds the tree from the parser's events. Numbers come as text and are converted here: the parser's own exact
// conversion takes the logarithm of zero, and makes a number of 0e-308.
class TreeBuilder {
 public:
  explicit TreeBuilder(rapidjson::Document& document) : allocator_(document.GetAllocator()) {}

  rapidjson::Value& root() { return open_.front(); }

  // NOLINTBEGIN(readability-identifier-naming): the parser's names
  bool Null() { return push(rapidjson::Value()); }
  bool Bool(bool value) { return push(rapidjson::Value(value)); }
  // Events of numbers that RawNumber takes the place of.
  bool Int(int /*value*/) { return false; }
  bool Uint(unsigned /*value*/) { return false; }
  bool Int64(int64_t /*value*/) { return false; }
  bool Uint64(uint64_t /*value*/) { return false; }
  bool Double(double /*value*/) { return false; }

  bool RawNumber(const char* text, rapidjson::SizeType length, bool /*copy*/) {
    const std::string_view digits(text, length);
    if (digits.find_first_not_of("-0123456789") == std::string_view::npos) {
      if (int64_t value = 0; convert(digits, &value)) return push(rapidjson::Value(value));
      if (uint64_t value = 0; convert(digits, &value)) return push(rapidjson::Value(value));
    }
    double value = 0;
    // Beyond the range of double: an infinity, or as near to zero as it is.
    if (!convert(digits, &value)) value = std::strtod(text, nullptr);
    return push(rapidjson::Value(value));
  }
  bool String(const char* text, rapidjson::SizeType length, bool /*copy*/) {
    return push(rapidjson::Value(text, length, allocator_));
  }
  bool Key(const char* text, rapidjson::SizeType length, bool copy) { return String(text, length, copy); }
  static bool StartObject() { return true; }
  static bool StartArray() { return true; }
  bool EndObject(rapidjson::SizeType members) {
    rapidjson::Value object(rapidjson::kObjectType);
    const size_t first = open_.size() - 2 * static_cast<size_t>(members);
    for (size_t i = first; i < open_.size(); i += 2) object.AddMember(open_[i], open_[i + 1], allocator_);
    return close(first, std::move(object));
  }
  bool EndArray(rapidjson::SizeType elements) {
    rapidjson::Value array(rapidjson::kArrayType);
    array.Reserve(elements, allocator_);
    const size_t first = open_.size() - static_cast<size_t>(elements);
    for (size_t i = first; i < open_.size(); ++i) array.PushBack(open_[i], allocator_);
    return close(first, std::move(array));
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  template <typename T>
  static bool convert(std::string_view digits, T* value) {
    const char* end = digits.data() + digits.size();
    const auto [at, error] = std::from_chars(digits.data(), end, *value);
    return error == std::errc() && at == end;
  }
  bool push(rapidjson::Value&& value) {
    open_.push_back(std::move(value));
    return true;
  }
  bool close(size_t first, rapidjson::Value&& value) {
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(first), open_.end());
    return push(std::move(value));
  }

  rapidjson::Document::AllocatorType& allocator_;
  std::vector<rapidjson::Value> open_;  // keys and values whose array or object has not ended
};

const rapidjson::Value& value_of(const void* value) {
  return *static_cast<const rapidjson::Value*>(value);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;  // an integer it was not
}

// Cut at a character's border, control characters shown as a question mark.
std::string quoted(std::string_view text) {
  size_t end = std::min(text.size(), kShownBytes);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  std::string shown(text.substr(0, end));
  for (char& c : shown) c = static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return fmt::format("\"{}{}\"", shown, end < text.size() ? "..." : "");
}

}  // namespace

struct JsonDocument::Parsed {
  rapidjson::Document document;
};

JsonDocument::JsonDocument() = default;
JsonDocument::~JsonDocument() = default;

std::optional<JsonFault> JsonDocument::parse(std::string_view text) {
  // The parser takes a zero byte for the end of its text.
  const size_t zero = text.find('\0');
  if (zero != std::string_view::npos) return JsonFault{zero + 1, "a zero byte"};
  parsed_ = std::make_unique<Parsed>();
  rapidjson::Document& document = parsed_->document;
  TreeBuilder builder(document);
  rapidjson::MemoryStream bytes(text.data(), text.size());
  rapidjson::EncodedInputStream<rapidjson::UTF8<>, rapidjson::MemoryStream> stream(bytes);
  rapidjson::Reader reader;
  const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, builder);
  if (!result.IsError()) {
    static_cast<rapidjson::Value&>(document) = std::move(builder.root());
    return std::nullopt;
  }
  std::string reason = rapidjson::GetParseError_En(result.Code());
  if (reason.ends_with('.')) reason.pop_back();
  return JsonFault{result.Offset() + 1, reason};
}

JsonView JsonDocument::root() const {
  return JsonView(static_cast<const rapidjson::Value*>(&parsed_->document));
}

JsonKind JsonView::kind() const {
  const auto& value = value_of(value_);
  switch (value.GetType()) {
    case rapidjson::kNullType:
      return JsonKind::kNull;
    case rapidjson::kFalseType:
    case rapidjson::kTrueType:
      return JsonKind::kBool;
    case rapidjson::kObjectType:
      return JsonKind::kObject;
    case rapidjson::kArrayType:
      return JsonKind::kArray;
    case rapidjson::kStringType:
      return JsonKind::kString;
    case rapidjson::kNumberType:
      return value.IsDouble() ? JsonKind::kReal : JsonKind::kInteger;
  }
  return JsonKind::kNull;
}

bool JsonView::boolean() const {
  return value_of(value_).GetBool();
}

std::optional<int64_t> JsonView::integer() const {
  const auto& value = value_of(value_);
  return value.IsInt64() ? std::optional<int64_t>(value.GetInt64()) : std::nullopt;
}

std::string JsonView::integer_text() const {
  const auto& value = value_of(value_);
  return value.IsInt64() ? fmt::format("{}", value.GetInt64()) : fmt::format("{}", value.GetUint64());
}

double JsonView::number() const {
  return value_of(value_).GetDouble();
}

std::string_view JsonView::string() const {
  const auto& value = value_of(value_);
  return {value.GetString(), value.GetStringLength()};
}

size_t JsonView::size() const {
  const auto& value = value_of(value_);
  return value.IsArray() ? value.Size() : value.MemberCount();
}

JsonView JsonView::at(size_t index) const {
  return JsonView(&value_of(value_)[static_cast<rapidjson::SizeType>(index)]);
}

std::string_view JsonView::name(size_t index) const {
  const auto& name = (value_of(value_).MemberBegin() + static_cast<std::ptrdiff_t>(index))->name;
  return {name.GetString(), name.GetStringLength()};
}

JsonView JsonView::member(size_t index) const {
  return JsonView(&(value_of(value_).MemberBegin() + static_cast<std::ptrdiff_t>(index))->value);
}

std::string JsonView::text() const {
  switch (kind()) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBool:
      return boolean() ? "true" : "false";
    case JsonKind::kInteger:
      return integer_text();
    case JsonKind::kReal:
      return number_text(number());
    case JsonKind::kString:
      return quoted(string());
    case JsonKind::kArray:
      return fmt::format("an array of {}", size());
    case JsonKind::kObject:
      return fmt::format("an object of {}", size());
  }
  return "";
}

}  // namespace lathe
