// The size of a model as a whole. Each value of config.json has its own limit (hf_config.cc); together they could still
// ask for more names and numbers than memory or 64 bits hold, long before a weight is read.
#pragma once

#include <string>

#include "lathe/model/config.h"

namespace lathe {

// Model error that names `where` if the decoder is cut into more than 2^20 tensors, experts of their own and blocks of
// fused projections counted, or has more than 2^50 parameters. Beyond any model by a factor of ten.
void check_config_size(const std::string& where, const ModelConfig& config);

}  // namespace lathe
