#include "lathe/config/reference.h"

#include <fmt/format.h>

#include "lathe/config/option_table.h"

namespace lathe {
namespace {

constexpr const char* kIntroduction = R"(# Run files

<!-- Generated: run `lathe config-reference > docs/config.md` after a change of the option table. -->

`lathe train` reads one YAML file with one level of sections. `--set section.key=value` goes on top of it, as often as
wanted; the last one wins. The value of `--set` is YAML too, so that lists and maps work
(`--set 'grpo.reward_weights={format: 0.5}'`); paths are taken as they stand.

- Relative paths in a run file start at the folder of the file; on the command line, `--set` included, at the working
  directory.
- Unknown, repeated and ill-typed keys are errors. So is a key that was given a value other than its default and cannot
  have an effect: the message names everything that is missing. All errors of a configuration are reported at once.
- `auto` is stored as `auto`. The run folder's `config.resolved.yaml` has every key with its value and, beside it, where
  the value came from and what `auto` came to; `lathe train config.resolved.yaml` runs the same run again.
- `null` unsets an optional key.
- "s" marks keys that `lathe score` takes with `--set`.

```yaml
model:
  path: model
data:
  rollouts: rollouts.jsonl
  row_length: 4096
optimizer:
  learning_rate: 1e-6
run:
  dir: runs/first
  steps: 10
```
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string notes(const Option& option) {
  std::string text;
  for (const Requirement& need : option.needs)
    text += fmt::format("; needs `{}` {}", need.key, need.relation);
  if (option.in_model) text += "; needs " + option.model_part;
  if (!option.built.empty()) {
    text += fmt::format("; built in this version: {}", fmt::join(option.built, ", "));
  }
  return text;
}

std::string default_or_required(const Option& option) {
  return option.required ? "required" : fmt::format("`{}`", default_text(option));
}

}  // namespace

std::string config_reference() {
  std::string text = kIntroduction;
  for (const OptionSection& section : option_sections()) {
    text += fmt::format("\n## {}: {}\n\n| key | value | default | | meaning |\n|---|---|---|---|---|\n",
                        section.name, section.help);
    for (const Option& option : option_table()) {
      if (option.section != section.name) continue;
      text += fmt::format("| `{}` | {} | {} | {} | {} |\n", option.name, escaped(option.expectation),
                          default_or_required(option), option.score ? "s" : "",
                          escaped(option.help + notes(option)));
    }
  }
  return text;
}

std::string config_key_list() {
  std::string text =
      "Keys of the run file and of --set, with their defaults (docs/config.md explains them):\n";
  for (const Option& option : option_table()) {
    const std::string value = option.required ? "required" : default_text(option);
    text += fmt::format("  {} ({}): {}\n", option.key(), value, option.expectation);
  }
  return text;
}

}  // namespace lathe
