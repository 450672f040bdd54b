// What a model folder or a safetensors file holds, for `lathe inspect`. Reads headers and config.json, no weights (but
// for a tied head that is on disk, which is compared with the embedding).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct InspectedTensor {
  std::string name;
  std::string dtype;  // as in the file
  std::vector<int64_t> shape;
};

struct ModelReport {
  std::string family;      // "" for a lone file, or a folder whose config.json is not understood
  int64_t parameters = 0;  // of the text decoder; of all tensors without a family
  int64_t active_parameters =
      0;  // that a token meets: k of E experts, the head, not the embedding; 0 without a family
  std::vector<InspectedTensor> tensors;  // sorted by name
  std::vector<std::string> unused;       // tensors that the decoder does not read
  std::vector<std::string> missing;      // tensors that it needs and that are not there
  std::vector<std::string>
      problems;  // why the model would be refused, beyond `missing`; empty if it would load
  std::vector<std::string> warnings;
};

// path: a folder in Hugging Face layout or one .safetensors file. Model errors: unreadable or broken files.
[[nodiscard]] ModelReport inspect_model(const std::string& path);

}  // namespace lathe
