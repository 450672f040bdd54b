// The one table of options. From it come reading and checking of run files and --set, config.resolved.yaml,
// the key list of `lathe train --help`, and docs/config.md.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lathe/config/value.h"
#include "lathe/loop/run_config.h"
#include "lathe/model/config.h"

namespace lathe {

// Something an option needs to have any effect: `key` must be `relation` ("> 0", "linear or cosine").
struct Requirement {
  std::string key;
  std::string relation;
  std::function<bool(const RunConfig&)> met;
};

struct Option {
  std::string section;
  std::string name;
  std::string expectation;  // completes "must be ..."
  std::string help;
  bool is_text = false;   // any text: --set takes it as it stands, without YAML
  bool is_path = false;   // relative paths are completed
  bool required = false;  // `lathe train` needs it
  bool score = false;     // `lathe score` reads it

  // Values that this version can run, as text() writes them; empty: all.
  std::vector<std::string> built;
  // Needed for any value but the default.
  std::vector<Requirement> needs;

  // The part of a model that reads the option, and whether a model has it; unset: every model has it.
  std::string model_part;
  std::function<bool(const ModelConfig&)> in_model;

  // False if the value is not what `expectation` says; the config is then unchanged.
  std::function<bool(const ConfigValue&, RunConfig&)> set;
  std::function<std::string(const RunConfig&)> text;  // as YAML
  // What auto, 0 or null comes to, for the comment in config.resolved.yaml; may be empty.
  std::function<std::string(const RunConfig&)> choice;
  // Paths only: completes a relative path with a folder.
  std::function<void(RunConfig&, const std::string& folder)> complete_path;

  [[nodiscard]] std::string key() const { return section + "." + name; }
};

struct OptionSection {
  std::string name;
  std::string help;
};

[[nodiscard]] const std::vector<OptionSection>& option_sections();
[[nodiscard]] const std::vector<Option>& option_table();  // by section, in that order
[[nodiscard]] const Option* find_option(const std::string& key);
[[nodiscard]] std::string default_text(const Option& option);

}  // namespace lathe
