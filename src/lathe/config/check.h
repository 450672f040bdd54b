// Checks of a configuration as a whole: required options, options without effect, options that are not built,
// and combinations. They add to a list of problems and read no files.
#pragma once

#include <set>
#include <string>

#include "lathe/config/load.h"
#include "lathe/config/problems.h"

namespace lathe {

void check_required(const LoadedConfig& loaded, const std::string& run_file, ProblemList* problems);
// `refused`: keys whose value was refused already; what depends on them is not judged.
void check_values(const LoadedConfig& loaded, const std::set<std::string>& refused, ProblemList* problems);

}  // namespace lathe
