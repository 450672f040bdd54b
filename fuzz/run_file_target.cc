#include <string>
#include <vector>

#include "lathe/config/load.h"
#include "lathe/config/option_table.h"

#include "fuzz/scratch_folder.h"
#include "fuzz/targets.h"

namespace lathe::fuzz {
namespace {

std::string values_of(const RunConfig& config) {
  std::string text;
  for (const Option& option : option_table()) text += option.key() + "=" + option.text(config) + "\n";
  return text;
}

std::vector<std::string> lines_of(std::string_view bytes) {
  std::vector<std::string> lines(1);
  for (const char c : bytes) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

}  // namespace

void fuzz_run_file(std::string_view bytes) {
  static const ScratchFolder scratch;
  const std::string path = scratch.write("run.yaml", bytes);
  LoadedConfig loaded;
  if (accepts(ErrorKind::kConfig, [&] { loaded = load_train_config(path, {}); })) {
    // The resolved file must run the same run.
    const std::string resolved = scratch.write("config.resolved.yaml", resolved_config_text(loaded));
    const LoadedConfig again = load_train_config(resolved, {});
    expect(values_of(again.config) == values_of(loaded.config), "the resolved file says something else");
  }
  static_cast<void>(
      accepts(ErrorKind::kConfig, [&] { static_cast<void>(load_score_config(lines_of(bytes))); }));
}

}  // namespace lathe::fuzz
