#include "lathe/model/inspect.h"

#include <limits>
#include <optional>

#include "lathe/core/error.h"
#include "lathe/io/files.h"
#include "lathe/io/hf_folder.h"
#include "lathe/model/parameters.h"

namespace lathe {
namespace {

// A file may name extents that nothing backs (in a dtype of unknown size): their sum must not overflow.
void add_elements(const TensorInfo& info, int64_t* sum) {
  if (__builtin_add_overflow(*sum, info.elements(), sum)) *sum = std::numeric_limits<int64_t>::max();
}

ModelReport inspect_file(const std::string& path) {
  const SafetensorsFile file(path);
  ModelReport report;
  for (const auto& [name, info] : file.tensors()) {
    report.tensors.push_back({name, info.dtype, info.shape});
    add_elements(info, &report.parameters);
  }
  return report;
}

}  // namespace

ModelReport inspect_model(const std::string& path) {
  const std::string kind = other_than_file(path);
  if (file_exists(path) || (!kind.empty() && kind != "a folder")) return inspect_file(path);
  const HfFolder folder(path);
  ModelReport report;
  int64_t elements = 0;
  for (const std::string& name : folder.tensor_names()) {
    const TensorInfo& info = folder.info(name);
    report.tensors.push_back({name, info.dtype, info.shape});
    add_elements(info, &elements);
  }
  std::optional<ModelConfig> config;
  try {
    config = read_model_config(path, &report.warnings);
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
    report.parameters = elements;
    return report;
  }
  FolderFindings findings = examine_folder(*config, folder);
  report.family = config->family;
  report.parameters = parameter_count(*config);
  report.active_parameters = active_parameter_count(*config);
  report.unused = std::move(findings.layout.passthrough);
  report.missing = std::move(findings.missing);
  report.problems = std::move(findings.faults);
  return report;
}

}  // namespace lathe
