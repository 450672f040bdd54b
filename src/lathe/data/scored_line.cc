#include <cmath>
#include <iterator>

#include "lathe/core/error.h"
#include "lathe/data/json_view.h"
#include "lathe/data/rollouts.h"

namespace lathe {
namespace {

// The end of the value that starts at `at`, in text known to be JSON.
size_t end_of_value(const std::string& text, size_t at) {
  size_t depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}')) break;
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
  }
  return at;
}

// Whether the quoted name is one of ours, however it is escaped.
bool is_replaced(const std::string& quoted) {
  if (quoted == "\"logprobs\"" || quoted == "\"entropy\"") return true;
  if (quoted.find('\\') == std::string::npos) return false;
  JsonDocument document;
  if (document.parse(quoted)) return false;
  const auto name = document.root().string();
  return name == "logprobs" || name == "entropy";
}

void append_values(const char* name, const std::vector<float>& values, std::string& out) {
  out += fmt::format("\"{}\": [", name);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ", ";
    if (std::isfinite(values[i])) {
      fmt::format_to(std::back_inserter(out), "{}", values[i]);
    } else {
      out += "null";
    }
  }
  out += ']';
}

}  // namespace

std::string scored_line(const std::string& text, const std::vector<float>& logprobs,
                        const std::vector<float>& entropy) {
  constexpr const char* kSpace = " \t\r\n";
  size_t at = text.find('{');
  LATHE_CHECK(at != std::string::npos);
  std::string out = "{";
  at = text.find_first_not_of(kSpace, at + 1);
  LATHE_CHECK(at != std::string::npos);
  while (text[at] == '"') {
    size_t name_end = at + 1;
    while (text[name_end] != '"') name_end += text[name_end] == '\\' ? 2 : 1;
    const std::string name = text.substr(at, name_end + 1 - at);
    const size_t end = end_of_value(text, name_end + 1);
    LATHE_CHECK(end < text.size());
    if (!is_replaced(name)) {
      const size_t last = text.find_last_not_of(kSpace, end - 1);
      out.append(text, at, last + 1 - at);
      out += ", ";
    }
    if (text[end] == '}') break;
    at = text.find_first_not_of(kSpace, end + 1);
    LATHE_CHECK(at != std::string::npos);
  }
  append_values("logprobs", logprobs, out);
  out += ", ";
  append_values("entropy", entropy, out);
  out += '}';
  return out;
}

}  // namespace lathe
