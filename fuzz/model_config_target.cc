#include <algorithm>
#include <vector>

#include "lathe/model/config.h"
#include "lathe/model/parameters.h"

#include "fuzz/scratch_folder.h"
#include "fuzz/targets.h"

namespace lathe::fuzz {
namespace {

// Larger layouts are lists of the same names, and too slow to make for every input.
constexpr int64_t kTensors = 4096;

void check_layout(const ModelConfig& config) {
  const ParameterLayout layout = layout_from_names(config, usual_naming(config));
  int64_t elements = 0;
  for (const ParameterSpec& parameter : layout.parameters) {
    int64_t rows = 0;
    for (const HfSlice& slice : parameter.slices) rows += slice.rows;
    expect(rows == parameter.rows(), parameter.name() + ": slices do not cover the rows");
    elements += parameter.shape.size();
  }
  expect(elements == parameter_count(config), "the layout and parameter_count differ");
}

}  // namespace

void fuzz_model_config(std::string_view bytes) {
  static const ScratchFolder scratch;
  scratch.write("config.json", bytes);
  ModelConfig config;
  std::vector<std::string> warnings;
  if (!accepts(ErrorKind::kModel, [&] { config = read_model_config(scratch.path(), &warnings); })) return;
  expect(parameter_count(config) > 0, "no parameters");
  expect(active_parameter_count(config) > 0, "no active parameters");
  if (config.num_layers() * std::max<int64_t>(config.num_experts, 8) <= kTensors) check_layout(config);
}

}  // namespace lathe::fuzz
