#include "lathe/core/error.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/args.h>

namespace lathe {

Error::Error(ErrorKind kind, const std::string& where, const std::string& what, std::string hint)
    : std::runtime_error(where.empty() ? what : where + ": " + what), kind_(kind), hint_(std::move(hint)) {}

void config_error(const std::string& where, const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::kConfig, where, what, hint);
}
void data_error(const std::string& where, const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::kData, where, what, hint);
}
void model_error(const std::string& where, const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::kModel, where, what, hint);
}
void retryable_error(const std::string& where, const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::kRetryable, where, what, hint);
}

void detail::check_failed(const char* file, int line, const char* condition, const char* format,
                          std::initializer_list<CheckValue> values) {
  fmt::dynamic_format_arg_store<fmt::format_context> arguments;
  for (const CheckValue& value : values) {
    switch (value.kind) {
      case CheckValue::Kind::kSigned:
        arguments.push_back(value.integer);
        break;
      case CheckValue::Kind::kUnsigned:
        arguments.push_back(static_cast<unsigned long long>(value.integer));
        break;
      case CheckValue::Kind::kFloat:
        arguments.push_back(value.number);
        break;
      case CheckValue::Kind::kText:
        arguments.push_back(value.text);
        break;
    }
  }
  std::string message;
  try {
    message = fmt::vformat(format, arguments);
  } catch (const fmt::format_error&) {
    message = format;
  }
  throw Error(ErrorKind::kInternal, fmt::format("{}:{}", file, line),
              fmt::format("check failed: {}{}{}", condition, message.empty() ? "" : ": ", message),
              "this is a bug in lathe: please report it with the output of `lathe env`");
}

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace lathe
