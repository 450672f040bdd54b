// The keys of config.json beyond those that size the decoder: which are known, which say nothing about what
// it computes, and which ask for mathematics that is not built. Used by read_model_config alone.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// `text`: the JSON of config.json, already well formed. Model error for a value (beside or in text_config)
// that asks for other mathematics; a warning for every key that is not known, with the nearest known one if
// it is near.
void check_config_keys(const std::string& path, const std::string& text, std::vector<std::string>* warnings);

}  // namespace lathe
