#include <fmt/format.h>

#include "lathe/config/load.h"
#include "lathe/config/option_table.h"

namespace lathe {
namespace {

// A comment must not end its line early.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

std::string comment(const Option& option, const std::string& value, const LoadedConfig& loaded) {
  const auto origin = loaded.origins.find(option.key());
  const std::string from = origin == loaded.origins.end() ? "default" : one_line(origin->second);
  const bool automatic = value == "auto" || value == "0" || value == "null";
  return automatic && option.choice ? fmt::format("{}; here: {}", from, option.choice(loaded.config)) : from;
}

}  // namespace

std::vector<Setting> settings_of(const RunConfig& config) {
  std::vector<Setting> settings;
  for (const Option& option : option_table()) {
    settings.push_back({option.key(), option.text(config), option.text(RunConfig{})});
  }
  return settings;
}

std::string resolved_config_text(const LoadedConfig& loaded) {
  std::string text = "# Every option of this run. `lathe train` on this file runs the same run again.\n";
  for (const OptionSection& section : option_sections()) {
    text += section.name + ":\n";
    for (const Option& option : option_table()) {
      if (option.section != section.name) continue;
      const std::string value = option.text(loaded.config);
      text += fmt::format("  {}: {}  # {}\n", option.name, value, comment(option, value, loaded));
    }
  }
  return text;
}

}  // namespace lathe
