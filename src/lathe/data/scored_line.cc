#include <algorithm>
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

// A member's name without quotes and escapes.
std::string plain_name(const std::string& quoted) {
  if (quoted.find('\\') == std::string::npos) return quoted.substr(1, quoted.size() - 2);
  JsonDocument document;
  LATHE_CHECK(!document.parse(quoted), "{} was a name of an object", quoted);
  return std::string(document.root().string());
}

struct Member {
  std::string name;
  std::string text;        // as it stands, name and all, without spaces around it
  std::string after_name;  // from the colon on
};

std::vector<Member> members_of(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  std::vector<Member> members;
  size_t at = text.find('{');
  LATHE_CHECK(at != std::string::npos);
  at = text.find_first_not_of(kSpace, at + 1);
  LATHE_CHECK(at != std::string::npos);
  while (text[at] == '"') {
    size_t name_end = at + 1;
    while (text[name_end] != '"') name_end += text[name_end] == '\\' ? 2 : 1;
    const size_t end = end_of_value(text, name_end + 1);
    LATHE_CHECK(end < text.size());
    const size_t last = text.find_last_not_of(kSpace, end - 1);
    members.push_back({.name = plain_name(text.substr(at, name_end + 1 - at)),
                       .text = text.substr(at, last + 1 - at),
                       .after_name = text.substr(name_end + 1, last - name_end)});
    if (text[end] == '}') break;
    at = text.find_first_not_of(kSpace, end + 1);
    LATHE_CHECK(at != std::string::npos);
  }
  return members;
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
  const std::vector<Member> members = members_of(text);
  const bool scored_before =
      std::any_of(members.begin(), members.end(), [](const Member& m) { return m.name == "entropy"; });
  std::string out = "{";
  for (const Member& member : members) {
    if (member.name == "logprobs" && !scored_before) {
      out += "\"rollout_logprobs\"" + member.after_name + ", ";
    } else if (member.name != "logprobs" && member.name != "entropy") {
      out += member.text + ", ";
    }
  }
  append_values("logprobs", logprobs, out);
  out += ", ";
  append_values("entropy", entropy, out);
  out += '}';
  return out;
}

}  // namespace lathe
