#include "fuzz/targets.h"

namespace lathe::fuzz {

std::span<const NamedTarget> targets() {
  static constexpr NamedTarget kTargets[] = {
      {"safetensors", fuzz_safetensors},   {"weight_index", fuzz_weight_index},
      {"model_config", fuzz_model_config}, {"rollouts", fuzz_rollouts},
      {"run_file", fuzz_run_file},         {"train_state", fuzz_train_state},
  };
  return kTargets;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw Finding(what);
}

}  // namespace lathe::fuzz
