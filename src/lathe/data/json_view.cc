#include "lathe/data/json_view.h"

#include <cmath>

#include <fmt/format.h>
#include <rapidjson/document.h>
#include <rapidjson/error/en.h>

namespace lathe {
namespace {

constexpr unsigned kFlags = rapidjson::kParseNanAndInfFlag | rapidjson::kParseFullPrecisionFlag |
                            rapidjson::kParseValidateEncodingFlag | rapidjson::kParseIterativeFlag;
constexpr size_t kShownBytes = 60;

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
  document.Parse<kFlags>(text.data(), text.size());
  if (!document.HasParseError()) return std::nullopt;
  std::string reason = rapidjson::GetParseError_En(document.GetParseError());
  if (reason.ends_with('.')) reason.pop_back();
  return JsonFault{document.GetErrorOffset() + 1, reason};
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
