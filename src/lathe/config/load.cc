#include "lathe/config/load.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "lathe/config/check.h"
#include "lathe/config/mesh.h"
#include "lathe/config/option_table.h"
#include "lathe/config/value.h"

namespace lathe {
namespace {

constexpr const char* kSeeReference = "`lathe config-reference` lists every option";

std::string hint_for_unknown(const std::string& section, const std::string& name) {
  std::vector<std::string> in_section;
  std::vector<std::string> all;
  std::string elsewhere;
  for (const Option& option : option_table()) {
    if (option.section == section) in_section.push_back(option.name);
    all.push_back(option.key());
    if (option.name == name && elsewhere.empty()) elsewhere = option.key();
  }
  std::string guess = elsewhere;
  if (guess.empty() && !in_section.empty()) {
    const std::string near = nearest_name(name, in_section);
    if (!near.empty()) guess = section + "." + near;
  }
  if (guess.empty()) guess = nearest_name(section.empty() ? name : section + "." + name, all);
  return guess.empty() ? kSeeReference : fmt::format("did you mean '{}'?", guess);
}

std::string hint_for_unknown_section(const std::string& section) {
  std::vector<std::string> names;
  for (const OptionSection& known : option_sections()) names.push_back(known.name);
  const std::string guess = nearest_name(section, names);
  for (const Option& option : option_table()) {
    if (option.name == section)
      return fmt::format("did you mean '{}' of section '{}'?", section, option.section);
  }
  return guess.empty() ? "the sections are " + fmt::format("{}", fmt::join(names, ", "))
                       : fmt::format("did you mean '{}'?", guess);
}

bool is_section(const std::string& name) {
  for (const OptionSection& section : option_sections()) {
    if (section.name == name) return true;
  }
  return false;
}

class Loader {
 public:
  Loader(LoadedConfig* loaded, ProblemList* problems) : loaded_(loaded), problems_(problems) {}

  void read_file(const std::string& path) {
    const ConfigValue root = read_yaml_file(path);
    if (root.kind != ConfigValue::Kind::kMap && root.kind != ConfigValue::Kind::kNull) {
      config_error(path, fmt::format("is {}, expected sections of keys", describe(root)),
                   "see examples/ for run files, and docs/config.md");
    }
    const std::string folder = std::filesystem::path(path).parent_path().string();
    std::map<std::string, int> lines;
    for (const ConfigEntry& entry : root.entries) {
      const std::string place = fmt::format("{}:{}", path, entry.line);
      const auto [first, fresh] = lines.emplace(entry.key, entry.line);
      if (!fresh) {
        problems_->add(place,
                       fmt::format("section '{}' is there twice, first on line {}", entry.key, first->second),
                       "put its keys together");
      } else if (!is_section(entry.key)) {
        problems_->add(place, fmt::format("unknown section '{}'", entry.key),
                       hint_for_unknown_section(entry.key));
      } else if (entry.value.kind == ConfigValue::Kind::kMap) {
        read_section(path, entry.key, entry.value, folder);
      } else if (entry.value.kind != ConfigValue::Kind::kNull) {
        problems_->add(
            place,
            fmt::format("section '{}' must be a map of keys, got {}", entry.key, describe(entry.value)),
            fmt::format("write its keys indented under '{}:'", entry.key));
      }
    }
  }

  void read_set(const std::string& set, bool score) {
    const std::string place = "--set " + set;
    const size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) {
      problems_->add(place, "must have the form section.key=value",
                     "for example --set optimizer.learning_rate=1e-6");
      return;
    }
    const std::string key = set.substr(0, equals);
    const Option* option = find_option(key);
    if (option == nullptr) {
      const size_t dot = key.find('.');
      const std::string section = dot == std::string::npos ? "" : key.substr(0, dot);
      add_unknown(place, section, dot == std::string::npos ? key : key.substr(dot + 1));
      return;
    }
    if (score && !check_score_key(place, *option)) return;
    problems_->collect(
        "", [&] { apply(*option, set_value(*option, set.substr(equals + 1), place), place, "--set", ""); });
  }

  // Keys that were refused, for their name or their value; the config holds the default.
  [[nodiscard]] const std::set<std::string>& failed() const { return failed_; }

 private:
  void read_section(const std::string& path, const std::string& section, const ConfigValue& keys,
                    const std::string& folder) {
    std::map<std::string, int> lines;
    for (const ConfigEntry& entry : keys.entries) {
      const std::string place = fmt::format("{}:{}", path, entry.line);
      const std::string key = section + "." + entry.key;
      const auto [first, fresh] = lines.emplace(entry.key, entry.line);
      if (!fresh) {
        problems_->add(place, fmt::format("option '{}' is there twice, first on line {}", key, first->second),
                       "remove one of them");
        continue;
      }
      const Option* option = find_option(key);
      if (option == nullptr) {
        add_unknown(place, section, entry.key);
      } else {
        apply(*option, entry.value, place, place, folder);
      }
    }
  }

  void add_unknown(const std::string& place, const std::string& section, const std::string& name) {
    const std::string key = section.empty() ? name : section + "." + name;
    failed_.insert(key);
    if (section == "remat" && edit_distance(name, "policy") > 2) {
      problems_->add(
          place, fmt::format("{}: keeping or recomputing named tensors is not built in this version", key),
          "remat.policy decides for all tensors");
      return;
    }
    problems_->add(place, fmt::format("unknown option '{}'", key), hint_for_unknown(section, name));
  }

  // Text that --set gives to a path is taken as it stands, so that globs and colons need no second quoting.
  static ConfigValue set_value(const Option& option, const std::string& text, const std::string& place) {
    const bool quoted =
        text.size() > 1 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front();
    if (!option.is_text || quoted) return parse_yaml(text, place);
    ConfigValue value;
    value.kind = ConfigValue::Kind::kScalar;
    value.text = text;
    return value;
  }

  void apply(const Option& option, const ConfigValue& value, const std::string& place,
             const std::string& origin, const std::string& folder) {
    loaded_->origins[option.key()] = origin;
    if (!option.set(value, loaded_->config)) {
      problems_->add(place,
                     fmt::format("{} must be {}, got {}", option.key(), option.expectation, describe(value)),
                     hint_for_value(option, value));
      failed_.insert(option.key());
    } else if (option.is_path) {
      option.complete_path(loaded_->config, folder);
    }
  }

  static std::string hint_for_value(const Option& option, const ConfigValue& value) {
    if (value.kind != ConfigValue::Kind::kScalar) return "";
    if (value.quoted) {
      ConfigValue plain = value;
      plain.quoted = false;
      RunConfig scratch;
      if (option.set(plain, scratch)) return "remove the quotes";
    }
    std::vector<std::string> words;
    std::string word;
    for (const char c : option.expectation + " ") {
      if (c != ' ' && c != ',') {
        word += c;
      } else if (!word.empty()) {
        RunConfig scratch;
        ConfigValue candidate;
        candidate.kind = word == "null" ? ConfigValue::Kind::kNull : ConfigValue::Kind::kScalar;
        candidate.text = word;
        const bool is_word = word.find_first_of("0123456789") != 0;
        if (is_word && !option.is_text && option.set(candidate, scratch)) words.push_back(word);
        word.clear();
      }
    }
    const std::string guess = nearest_name(value.text, words);
    return guess.empty() || edit_distance(value.text, guess) > 3 ? ""
                                                                 : fmt::format("did you mean '{}'?", guess);
  }

  bool check_score_key(const std::string& place, const Option& option) {
    if (option.score) return true;
    if (option.key() == "model.path") {
      problems_->add(place, "lathe score takes the model from --model", "remove this --set");
    } else if (option.key() == "data.rollouts") {
      problems_->add(place, "lathe score takes the rollouts from --rollouts", "remove this --set");
    } else {
      problems_->add(place, fmt::format("option '{}' does nothing in lathe score", option.key()),
                     "remove this --set");
    }
    return false;
  }

  LoadedConfig* loaded_;
  ProblemList* problems_;
  std::set<std::string> failed_;
};

// Unless a key of it was refused: then it is not the mesh that was meant.
void check_mesh(LoadedConfig* loaded, int ranks, const std::set<std::string>& failed, ProblemList* problems) {
  const bool doubtful =
      std::any_of(failed.begin(), failed.end(), [](const auto& key) { return key.starts_with("mesh."); });
  if (!doubtful) resolve_mesh(loaded, ranks, problems);
}

}  // namespace

LoadedConfig load_train_config(const std::string& run_file, const std::vector<std::string>& sets, int ranks) {
  LoadedConfig loaded;
  ProblemList problems;
  Loader loader(&loaded, &problems);
  loader.read_file(run_file);
  for (const std::string& set : sets) loader.read_set(set, false);
  check_required(loaded, run_file, &problems);
  check_mesh(&loaded, ranks, loader.failed(), &problems);
  check_values(loaded, loader.failed(), &problems);
  problems.throw_if_any();
  return loaded;
}

LoadedConfig load_score_config(const std::vector<std::string>& sets, int ranks) {
  LoadedConfig loaded;
  ProblemList problems;
  Loader loader(&loaded, &problems);
  for (const std::string& set : sets) loader.read_set(set, true);
  check_mesh(&loaded, ranks, loader.failed(), &problems);
  check_values(loaded, loader.failed(), &problems);
  problems.throw_if_any();
  return loaded;
}

}  // namespace lathe
