#include <algorithm>

#include <fmt/format.h>

#include "lathe/data/rollout_fields.h"

namespace lathe {

void RolloutFields::read_tokens() {
  const Found* tokens = find("tokens");
  if (tokens != nullptr && find("prompt_ids") == nullptr && find("completion_ids") == nullptr) {
    split_whole_sequence(*tokens);
    return;
  }
  t_.prompt_ids = ids(require("prompt_ids"));
  t_.completion_ids = ids(require("completion_ids"));
  if (tokens != nullptr) compare_whole_sequence(*tokens);
  const Found* length = present("response_length");
  if (length != nullptr && length->value.integer() != static_cast<int64_t>(t_.completion_ids.size())) {
    fault(length->name, length->value.text(),
          fmt::format("{}, the number of completion ids", t_.completion_ids.size()));
  }
}

// A list of the whole sequence beside its two parts must be the two parts.
void RolloutFields::compare_whole_sequence(const Found& tokens) const {
  const std::vector<int32_t> all = ids(tokens);
  std::vector<int32_t> parts = t_.prompt_ids;
  parts.insert(parts.end(), t_.completion_ids.begin(), t_.completion_ids.end());
  if (all == parts) return;
  const auto [at, part] = std::mismatch(all.begin(), all.end(), parts.begin(), parts.end());
  fault(tokens.name,
        fmt::format("{} ids that leave those of the prompt and completion ({}) at {}", all.size(),
                    parts.size(), at - all.begin()),
        "the same ids, or one of the two forms",
        "were the tokens made again from text? give only those sampled");
}

// One list of prompt and completion: response_length says where the completion begins, or the first scored
// token does.
void RolloutFields::split_whole_sequence(const Found& tokens) {
  whole_ = true;
  const std::vector<int32_t> all = ids(tokens);
  size_t prompt = 0;
  if (const Found* length = present("response_length")) {
    const std::string expected =
        fmt::format("an integer in [1, {}), for {} has {} tokens", all.size(), tokens.name, all.size());
    const int64_t response = integer(*length, expected);
    if (response < 1 || response >= static_cast<int64_t>(all.size()))
      fault(length->name, length->value.text(), expected);
    prompt = all.size() - static_cast<size_t>(response);
  } else if (const Found* mask = present("completion_mask")) {
    const auto values = mask_values(*mask);
    const auto first = std::find(values.begin(), values.end(), 1);
    prompt = static_cast<size_t>(first - values.begin());
    if (values.size() != all.size() || prompt == 0 || first == values.end()) {
      fault(mask->name, fmt::format("{} values, the first scored one at {}", values.size(), prompt),
            fmt::format("a value for each of the {} tokens of {}, with a prompt that is not scored",
                        all.size(), tokens.name));
    }
  } else {
    fault("completion_ids", "missing",
          fmt::format("it, or response_length or loss_mask beside {}", tokens.name));
  }
  const auto border = all.begin() + static_cast<std::ptrdiff_t>(prompt);
  t_.prompt_ids.assign(all.begin(), border);
  t_.completion_ids.assign(border, all.end());
}

}  // namespace lathe
