#include "lathe/config/option_rows.h"

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <regex>

#include "lathe/core/error.h"

namespace lathe {
namespace {

template <typename T>
std::optional<T> parse_all(std::string_view text) {
  if (text.size() > 1 && text.front() == '+') text.remove_prefix(1);
  T x{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return x;
}

}  // namespace

bool Interval::contains(double x) const {
  return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high);
}

std::string Interval::text() const {
  const bool has_low = std::isfinite(low);
  const bool has_high = std::isfinite(high);
  if (has_low && has_high) {
    return fmt::format("in {}{}, {}{}", low_open ? '(' : '[', number_text(low), number_text(high),
                       high_open ? ')' : ']');
  }
  if (has_low) return fmt::format("{} {}", low_open ? ">" : ">=", number_text(low));
  if (has_high) return fmt::format("{} {}", high_open ? "<" : "<=", number_text(high));
  return "";
}

std::optional<double> to_number(const ConfigValue& value) {
  if (!value.is_plain()) return std::nullopt;
  const auto x = parse_all<double>(value.text);
  return x && std::isfinite(*x) ? x : std::nullopt;
}

std::optional<int64_t> to_integer(const ConfigValue& value) {
  return value.is_plain() ? parse_all<int64_t>(value.text) : std::nullopt;
}

std::optional<uint64_t> to_unsigned(const ConfigValue& value) {
  return value.is_plain() ? parse_all<uint64_t>(value.text) : std::nullopt;
}

std::optional<bool> to_bool(const ConfigValue& value) {
  if (!value.is_plain()) return std::nullopt;
  if (value.text == "true" || value.text == "True" || value.text == "TRUE") return true;
  if (value.text == "false" || value.text == "False" || value.text == "FALSE") return false;
  return std::nullopt;
}

std::optional<int64_t> to_bytes(const ConfigValue& value) {
  constexpr std::array<std::pair<std::string_view, int>, 4> kUnits{
      {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
  if (value.kind != ConfigValue::Kind::kScalar) return std::nullopt;
  std::string_view text = value.text;
  int shift = 0;
  for (const auto& [unit, bits] : kUnits) {
    if (text.size() <= unit.size() || text.substr(text.size() - unit.size()) != unit) continue;
    text.remove_suffix(unit.size());
    if (text.back() == ' ') text.remove_suffix(1);
    shift = bits;
    break;
  }
  constexpr double kMost = 1e18;
  const auto x = parse_all<double>(text);
  if (!x || !(*x >= 0)) return std::nullopt;
  const double bytes = std::ldexp(*x, shift);
  if (bytes > kMost || (shift == 0 && bytes != std::floor(bytes))) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

bool is_regex(const std::string& text) {
  try {
    const std::regex compiled(text, std::regex::ECMAScript);
    static_cast<void>(compiled);
    return true;
  } catch (const std::regex_error&) {
    return false;
  }
}

std::string number_text(double x) {
  return fmt::format("{}", x);
}

std::string list_text(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& item : items) text += (text.size() > 1 ? ", " : "") + yaml_quoted(item);
  return text + "]";
}

std::string map_text(const std::map<std::string, double>& entries) {
  std::string text = "{";
  for (const auto& [name, x] : entries) {
    text += fmt::format("{}{}: {}", text.size() > 1 ? ", " : "", yaml_quoted(name), number_text(x));
  }
  return text + "}";
}

std::string join_words(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

std::string completed_path(const std::string& path, const std::string& folder) {
  const std::filesystem::path base = std::filesystem::absolute(folder.empty() ? "." : folder);
  return (base / path).lexically_normal().string();
}

}  // namespace lathe
