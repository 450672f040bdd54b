// config.json texts for tests: a small valid one per family, changed key by key.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lathe::test {

// Values are JSON text.
using ConfigKeys = std::map<std::string, std::string>;

inline std::string json_of(const ConfigKeys& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += (text.empty() ? "{\"" : ",\"") + key + "\":" + value;
  return text + "}";
}

inline ConfigKeys keys_with(ConfigKeys keys, const ConfigKeys& changes) {
  for (const auto& [key, value] : changes) keys[key] = value;
  return keys;
}

inline ConfigKeys dense_keys(const std::string& model_type) {
  return {{"model_type", "\"" + model_type + "\""},
          {"vocab_size", "31"},
          {"hidden_size", "12"},
          {"intermediate_size", "20"},
          {"num_hidden_layers", "4"},
          {"num_attention_heads", "4"},
          {"num_key_value_heads", "2"},
          {"head_dim", "6"}};
}

inline ConfigKeys moe_keys(const std::string& model_type) {
  return keys_with(dense_keys(model_type),
                   {{"num_experts", "5"}, {"num_experts_per_tok", "2"}, {"moe_intermediate_size", "7"}});
}

inline const ConfigKeys kLinearKeys = {
    {"head_dim", "16"},           {"linear_num_key_heads", "2"},  {"linear_num_value_heads", "6"},
    {"linear_key_head_dim", "5"}, {"linear_value_head_dim", "3"}, {"shared_expert_intermediate_size", "9"}};

inline ConfigKeys hybrid_keys(const std::string& model_type) {
  return keys_with(moe_keys(model_type), kLinearKeys);
}

inline ConfigKeys dense_hybrid_keys() {
  ConfigKeys keys = keys_with(dense_keys("qwen3_5_text"), kLinearKeys);
  keys.erase("shared_expert_intermediate_size");
  return keys;
}

}  // namespace lathe::test
