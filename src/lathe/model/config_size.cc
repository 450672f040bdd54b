#include "lathe/model/config_size.h"

#include "lathe/core/error.h"
#include "lathe/model/parameters.h"

namespace lathe {
namespace {

constexpr int64_t kMaxPieces = int64_t{1} << 20;
constexpr int64_t kMaxParameters = int64_t{1} << 50;
constexpr int64_t kPiecesOfLayer = 16;  // norms, projections, dense MLP
constexpr int64_t kPiecesOfExpert = 3;
constexpr int64_t kPiecesOfKeyHead = 6;

int64_t piece_count(const ModelConfig& config) {
  int64_t count = 0;
  for (const LayerKind& layer : config.layers) {
    count += kPiecesOfLayer;
    if (layer.mlp == MlpKind::kMoe) count += kPiecesOfExpert * config.num_experts;
    if (layer.mixer == MixerKind::kLinearAttention) count += kPiecesOfKeyHead * config.linear_num_key_heads;
  }
  return count;
}

}  // namespace

void check_config_size(const std::string& where, const ModelConfig& config) {
  const int64_t pieces = piece_count(config);
  if (pieces > kMaxPieces) {
    model_error(where,
                fmt::format("{} layers with {} experts are about {} tensors, more than the limit of {}",
                            config.num_layers(), config.num_experts, pieces, kMaxPieces),
                "is num_hidden_layers or num_experts mistyped?");
  }
  if (const int64_t parameters = parameter_count(config); parameters > kMaxParameters) {
    model_error(where,
                fmt::format("asks for {} parameters, more than the limit of {}", parameters, kMaxParameters),
                "is a size mistyped?");
  }
}

}  // namespace lathe
