// From a run file and --set to a checked RunConfig. Every fault that can be seen without reading other files
// is reported in one ConfigProblems (exit code 2).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lathe/loop/run_config.h"
#include "lathe/loop/train.h"
#include "lathe/model/config.h"

namespace lathe {

// Where a given value came from, by key: "run.yaml:14" or "--set". Keys that were not given are absent.
using ConfigOrigins = std::map<std::string, std::string>;

struct LoadedConfig {
  RunConfig config;  // paths are absolute
  ConfigOrigins origins;
};

// `lathe train`. Paths in the run file are relative to its folder, those in `sets` to the working directory. ranks: of this
// job; the mesh must be of as many.
[[nodiscard]] LoadedConfig load_train_config(const std::string& run_file,
                                             const std::vector<std::string>& sets, int ranks = 1);

// `lathe score`: only keys that scoring reads, from --set alone; model.path and data.rollouts have flags of
// their own.
[[nodiscard]] LoadedConfig load_score_config(const std::vector<std::string>& sets, int ranks = 1);

// A ConfigProblems if a key was given, differs from its default, and is about layers that this model does not have.
void check_against_model(const LoadedConfig& loaded, const ModelConfig& model);

// Every option with its value and its default as YAML.
[[nodiscard]] std::vector<Setting> settings_of(const RunConfig& config);

// The text of config.resolved.yaml: every key with its value and, as a comment, where it came from and what
// an automatic value comes to. `lathe train` on it runs the same run.
[[nodiscard]] std::string resolved_config_text(const LoadedConfig& loaded);

}  // namespace lathe
