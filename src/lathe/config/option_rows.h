// Builders of the rows of the option table, one per type of value. Used by option_table.cc and option_layers.cc alone.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lathe/config/option_table.h"

namespace lathe {

// Allowed values of a number; infinite ends are no limit.
struct Interval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;

  [[nodiscard]] bool contains(double x) const;
  [[nodiscard]] std::string text() const;  // "> 0", "in [0, 1)", "" without limits
};
[[nodiscard]] inline Interval at_least(double low) {
  return {.low = low};
}
[[nodiscard]] inline Interval above(double low) {
  return {.low = low, .low_open = true};
}
[[nodiscard]] inline Interval from_to(double low, double high) {
  return {.low = low, .high = high};
}

// Each is empty if the value is not of the type.
[[nodiscard]] std::optional<double> to_number(const ConfigValue& value);  // finite
[[nodiscard]] std::optional<int64_t> to_integer(const ConfigValue& value);
[[nodiscard]] std::optional<uint64_t> to_unsigned(const ConfigValue& value);
[[nodiscard]] std::optional<bool> to_bool(const ConfigValue& value);
[[nodiscard]] std::optional<int64_t> to_bytes(const ConfigValue& value);  // 1024, 512MiB, 6GiB
[[nodiscard]] bool is_regex(const std::string& text);

[[nodiscard]] std::string number_text(double x);
[[nodiscard]] std::string list_text(const std::vector<std::string>& items);
[[nodiscard]] std::string map_text(const std::map<std::string, double>& entries);
[[nodiscard]] std::string join_words(const std::vector<std::string>& words);  // "a, b or c"
[[nodiscard]] std::string completed_path(const std::string& path, const std::string& folder);

inline constexpr double kMostTokens = 1 << 30;  // positions are 32-bit
[[nodiscard]] inline Requirement axis_above_one(const std::string& axis, int64_t MeshSection::*member) {
  return {"mesh." + axis, "> 1", [member](const RunConfig& c) { return c.mesh.*member > 1; }};
}
// The sections moe, gdn and attention (option_layers.cc).
void add_layer_options(std::vector<Option>* table);

using Words = std::vector<std::string>;

// Adds rows of one section. `Section` is the struct that holds its values.
template <typename Section>
class Rows {
 public:
  Rows(std::vector<Option>* table, std::string section, Section RunConfig::*member)
      : table_(table), section_(std::move(section)), member_(member) {}

  Option& integer(const std::string& name, int64_t Section::*field, Interval range, const std::string& help) {
    const std::string limits = range.text();
    return add(
        name, limits.empty() ? "an integer" : "an integer " + limits, help,
        [member = member_, field, range](const ConfigValue& value, RunConfig& config) {
          const auto x = to_integer(value);
          if (!x || !range.contains(static_cast<double>(*x))) return false;
          (config.*member).*field = *x;
          return true;
        },
        [member = member_, field](const RunConfig& config) {
          return fmt::format("{}", (config.*member).*field);
        });
  }

  Option& unsigned_integer(const std::string& name, uint64_t Section::*field, const std::string& help) {
    return add(
        name, "an integer >= 0", help,
        [member = member_, field](const ConfigValue& value, RunConfig& config) {
          const auto x = to_unsigned(value);
          if (!x) return false;
          (config.*member).*field = *x;
          return true;
        },
        [member = member_, field](const RunConfig& config) {
          return fmt::format("{}", (config.*member).*field);
        });
  }

  // One of a few integers.
  Option& integer_choice(const std::string& name, int64_t Section::*field, const Words& choices,
                         const std::string& help) {
    return add(
        name, join_words(choices), help,
        [member = member_, field, choices](const ConfigValue& value, RunConfig& config) {
          const auto x = to_integer(value);
          if (!x || !holds(choices, fmt::format("{}", *x))) return false;
          (config.*member).*field = *x;
          return true;
        },
        [member = member_, field](const RunConfig& config) {
          return fmt::format("{}", (config.*member).*field);
        });
  }

  Option& number(const std::string& name, double Section::*field, Interval range, const std::string& help) {
    const std::string limits = range.text();
    return add(
        name, limits.empty() ? "a number" : "a number " + limits, help,
        [member = member_, field, range](const ConfigValue& value, RunConfig& config) {
          const auto x = to_number(value);
          if (!x || !range.contains(*x)) return false;
          (config.*member).*field = *x;
          return true;
        },
        [member = member_, field](const RunConfig& config) { return number_text((config.*member).*field); });
  }

  Option& optional_number(const std::string& name, std::optional<double> Section::*field, Interval range,
                          const std::string& help) {
    const std::string limits = range.text();
    return add(
        name, limits.empty() ? "a number, or null" : "a number " + limits + ", or null", help,
        [member = member_, field, range](const ConfigValue& value, RunConfig& config) {
          const auto x = to_number(value);
          const bool null = value.kind == ConfigValue::Kind::kNull;
          if (!null && (!x || !range.contains(*x))) return false;
          (config.*member).*field = null ? std::nullopt : x;
          return true;
        },
        [member = member_, field](const RunConfig& config) {
          const auto& x = (config.*member).*field;
          return x ? number_text(*x) : std::string("null");
        });
  }

  Option& flag(const std::string& name, bool Section::*field, const std::string& help) {
    return add(
        name, "true or false", help,
        [member = member_, field](const ConfigValue& value, RunConfig& config) {
          const auto x = to_bool(value);
          if (!x) return false;
          (config.*member).*field = *x;
          return true;
        },
        [member = member_, field](const RunConfig& config) {
          return std::string((config.*member).*field ? "true" : "false");
        });
  }

  Option& word(const std::string& name, std::string Section::*field, const Words& choices,
               const std::string& help) {
    return add(
        name, join_words(choices), help,
        [member = member_, field, choices](const ConfigValue& value, RunConfig& config) {
          if (value.kind != ConfigValue::Kind::kScalar || !holds(choices, value.text)) return false;
          (config.*member).*field = value.text;
          return true;
        },
        [member = member_, field](const RunConfig& config) { return (config.*member).*field; });
  }

  // An enumeration or a bool with words for its values; the word "null" is YAML's null.
  template <typename Value>
  Option& choice(const std::string& name, Value Section::*field,
                 const std::vector<std::pair<std::string, Value>>& choices, const std::string& help) {
    Words words;
    for (const auto& entry : choices) words.push_back(entry.first);
    return add(
        name, join_words(words), help,
        [member = member_, field, choices](const ConfigValue& value, RunConfig& config) {
          for (const auto& [word, meaning] : choices) {
            const bool null = word == "null" && value.kind == ConfigValue::Kind::kNull;
            if (!null && (value.kind != ConfigValue::Kind::kScalar || value.text != word)) continue;
            (config.*member).*field = meaning;
            return true;
          }
          return false;
        },
        [member = member_, field, choices](const RunConfig& config) {
          for (const auto& [word, meaning] : choices) {
            if ((config.*member).*field == meaning) return word;
          }
          return std::string("null");
        });
  }

  // A path. `words` are values that are not paths (run.resume: auto).
  Option& path(const std::string& name, std::string Section::*field, const Words& words,
               const std::string& what, const std::string& help) {
    Option& row = add(
        name, what, help,
        [member = member_, field](const ConfigValue& value, RunConfig& config) {
          if (value.kind != ConfigValue::Kind::kScalar || value.text.empty()) return false;
          (config.*member).*field = value.text;
          return true;
        },
        [member = member_, field, words](const RunConfig& config) {
          const std::string& text = (config.*member).*field;
          return holds(words, text) ? text : yaml_quoted(text);
        });
    row.is_text = true;
    row.is_path = true;
    row.complete_path = [member = member_, field, words](RunConfig& config, const std::string& folder) {
      std::string& text = (config.*member).*field;
      if (!text.empty() && !holds(words, text)) text = completed_path(text, folder);
    };
    return row;
  }

  Option& regexes(const std::string& name, std::vector<std::string> Section::*field,
                  const std::string& help) {
    return add(
        name, "a list of regular expressions (ECMAScript)", help,
        [member = member_, field](const ConfigValue& value, RunConfig& config) {
          if (value.kind != ConfigValue::Kind::kList) return false;
          std::vector<std::string> items;
          for (const ConfigValue& item : value.items) {
            if (item.kind != ConfigValue::Kind::kScalar || !is_regex(item.text)) return false;
            items.push_back(item.text);
          }
          (config.*member).*field = std::move(items);
          return true;
        },
        [member = member_, field](const RunConfig& config) { return list_text((config.*member).*field); });
  }

  Option& weights(const std::string& name, std::map<std::string, double> Section::*field,
                  const std::string& help) {
    return add(
        name, "a map of names to numbers", help,
        [member = member_, field](const ConfigValue& value, RunConfig& config) {
          if (value.kind != ConfigValue::Kind::kMap) return false;
          std::map<std::string, double> entries;
          for (const ConfigEntry& entry : value.entries) {
            const auto x = to_number(entry.value);
            if (!x || !entries.emplace(entry.key, *x).second) return false;
          }
          (config.*member).*field = std::move(entries);
          return true;
        },
        [member = member_, field](const RunConfig& config) { return map_text((config.*member).*field); });
  }

  Option& bytes(const std::string& name, int64_t Section::*field, const std::string& help) {
    return add(
        name, "a size (bytes, or with KiB, MiB, GiB, TiB), or 0", help,
        [member = member_, field](const ConfigValue& value, RunConfig& config) {
          const auto x = to_bytes(value);
          if (!x) return false;
          (config.*member).*field = *x;
          return true;
        },
        [member = member_, field](const RunConfig& config) {
          return fmt::format("{}", (config.*member).*field);
        });
  }

 private:
  static bool holds(const Words& words, const std::string& word) {
    for (const std::string& candidate : words) {
      if (candidate == word) return true;
    }
    return false;
  }

  template <typename Set, typename Text>
  Option& add(const std::string& name, const std::string& expectation, const std::string& help, Set set,
              Text text) {
    Option& row = table_->emplace_back();
    row.section = section_;
    row.name = name;
    row.expectation = expectation;
    row.help = help;
    row.set = std::move(set);
    row.text = std::move(text);
    return row;
  }

  std::vector<Option>* table_;
  std::string section_;
  Section RunConfig::*member_;
};

}  // namespace lathe
