#include "lathe/loop/memory_check.h"

#include <algorithm>
#include <limits>

#include "lathe/core/error.h"
#include "lathe/loop/memory_report.h"
#include "lathe/model/parameters.h"

namespace lathe {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
// Ids, segments and positions of a token, on the host and on the device.
constexpr int64_t kIndexBytes = 2 * 3 * int64_t{sizeof(int32_t)};

int64_t model_bytes(const RunConfig& config, const ModelConfig& model, bool trains) {
  const int64_t count = parameter_count(model);
  const bool narrow = config.model.weight_dtype == "bf16";
  int64_t each = narrow ? 2 : kFloatBytes;
  if (trains && config.model.trainable.empty()) {
    each += 3 * kFloatBytes +
            (narrow ? kFloatBytes : 0);  // gradient, two moments, and a master of narrow weights
  }
  const int64_t reference =
      trains && config.grpo.reference_initial && config.grpo.beta != 0 ? (narrow ? 2 : kFloatBytes) : 0;
  return count * (each + reference);
}

// A token's index arrays and its inputs of layers; scoring keeps one layer's input and output.
int64_t token_bytes(const ModelConfig& model, bool trains) {
  const int64_t inputs = trains ? model.num_layers() + 1 : 2;
  return kIndexBytes + kFloatBytes * model.hidden_size * inputs;
}

}  // namespace

LeastMemory least_memory(const RunConfig& config, const ModelConfig& model, int64_t row_length, bool trains) {
  const int64_t tokens =
      row_length * config.data.rows_per_micro_batch;  // < 2^31, checked with the configuration
  const MeshSection& mesh = config.mesh;
  const int64_t dense = mesh.fsdp * mesh.context * mesh.expert;
  return {.model = model_bytes(config, model, trains) / dense,
          .micro_batch = tokens / (dense * mesh.data) * token_bytes(model, trains)};
}

void check_memory(const RunConfig& config, const ModelConfig& model, int64_t row_length, bool trains,
                  int64_t available) {
  const LeastMemory least = least_memory(config, model, row_length, trains);
  if (least.total() <= available) return;
  if (least.model > available) {
    config_error(config.model.path,
                 fmt::format("its {} parameters alone need {}, but {} of memory are free",
                             parameter_count(model), bytes_text(least.model), bytes_text(available)),
                 trains ? "use a machine with more memory, model.weight_dtype: bf16, or a smaller model"
                        : "use a machine with more memory, or a smaller model");
  }
  const int64_t tokens = (available - least.model) / token_bytes(model, trains);
  config_error(
      "data.row_length",
      fmt::format("{} row(s) of {} tokens need at least {} beside {} for the model, but {} of memory are "
                  "free",
                  config.data.rows_per_micro_batch, row_length, bytes_text(least.micro_batch),
                  bytes_text(least.model), bytes_text(available)),
      fmt::format("a micro-batch here can have {} tokens at the very most: lower data.row_length or "
                  "data.rows_per_micro_batch",
                  tokens));
}

}  // namespace lathe
