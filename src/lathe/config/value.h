// A YAML value with its place in the file, free of the parser's types.
#pragma once

#include <string>
#include <vector>

namespace lathe {

struct ConfigEntry;

struct ConfigValue {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;                  // scalars
  bool quoted = false;               // scalars: '5' and "5" are text, never numbers
  int line = 0;                      // 1-based; 0: not from a file
  std::vector<ConfigValue> items;    // lists
  std::vector<ConfigEntry> entries;  // maps, in file order, repeated keys kept

  // A plain (unquoted) scalar: the only form of numbers and true/false.
  [[nodiscard]] bool is_plain() const { return kind == Kind::kScalar && !quoted; }
};

struct ConfigEntry {
  std::string key;
  int line = 0;
  ConfigValue value;
};

// The value as an error message shows it: -0.5, 'word', "quoted", null, a list, a map.
[[nodiscard]] std::string describe(const ConfigValue& value);

// Text as a YAML double-quoted scalar.
[[nodiscard]] std::string yaml_quoted(const std::string& text);

// The only document of a YAML file. Config errors: not a readable file, not YAML, more than one document.
[[nodiscard]] ConfigValue read_yaml_file(const std::string& path);
// `place` is what errors call the text.
[[nodiscard]] ConfigValue parse_yaml(const std::string& text, const std::string& place);

}  // namespace lathe
