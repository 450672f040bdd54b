#include "lathe/model/config.h"

namespace lathe {

int64_t ModelConfig::num_moe_layers() const {
  int64_t count = 0;
  for (const LayerKind& layer : layers) count += layer.mlp == MlpKind::kMoe ? 1 : 0;
  return count;
}

}  // namespace lathe
