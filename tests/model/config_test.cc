#include "lathe/model/config.h"

#include <gtest/gtest.h>

#include "lathe/core/error.h"

#include "support/temp_folder.h"

#include "model/model_files.h"

namespace lathe {
namespace {

using test::ConfigKeys;
using test::dense_hybrid_keys;
using test::dense_keys;
using test::error_of;
using test::hybrid_keys;
using test::json_of;
using test::keys_with;
using test::moe_keys;
using test::TempFolder;

ModelConfig read(const std::string& text, std::vector<std::string>* warnings = nullptr) {
  const TempFolder folder;
  folder.write("config.json", text);
  return read_model_config(folder.path(), warnings);
}

// Without "<path>/config.json: ".
std::string fault_of(const std::string& text) {
  const TempFolder folder;
  folder.write("config.json", text);
  const std::string fault =
      error_of(ErrorKind::kModel, [&] { return read_model_config(folder.path(), nullptr); });
  const std::string where = folder / "config.json: ";
  return fault.starts_with(where) ? fault.substr(where.size()) : fault;
}

std::vector<std::string> warnings_of(const std::string& text) {
  const TempFolder folder;
  folder.write("config.json", text);
  std::vector<std::string> warnings;
  static_cast<void>(read_model_config(folder / "config.json", &warnings));
  for (std::string& warning : warnings) warning.erase(0, (folder / "config.json: ").size());
  return warnings;
}

std::string mixers(const ModelConfig& config) {
  std::string text;
  for (const LayerKind& layer : config.layers) text += layer.mixer == MixerKind::kFullAttention ? 'F' : 'L';
  return text;
}
std::string mlps(const ModelConfig& config) {
  std::string text;
  for (const LayerKind& layer : config.layers) text += layer.mlp == MlpKind::kMoe ? 'M' : 'D';
  return text;
}

ModelConfig golden(const std::string& name) {
  return read_model_config(std::string(LATHE_GOLDENS) + "/" + name + "/model", nullptr);
}

TEST(ModelConfig, ReadsTheGoldenModels) {
  const ModelConfig llama = golden("llama");
  EXPECT_EQ(llama.family, "llama");
  EXPECT_TRUE(llama.tie_word_embeddings);
  EXPECT_FALSE(llama.qk_norm);
  EXPECT_EQ(llama.rope_theta, 5000);
  EXPECT_EQ(llama.rms_norm_eps, 1e-5);
  EXPECT_EQ(llama.rotary_dim, 10);
  EXPECT_EQ(golden("qwen3").rope_theta, 20000);
  EXPECT_EQ(mlps(golden("qwen3_moe")), "DMDM");
  const ModelConfig next = golden("qwen3_next");
  EXPECT_EQ(mixers(next), "LLLF");
  EXPECT_EQ(mlps(next), "MDMM");
  EXPECT_EQ(next.rotary_dim, 6);
  EXPECT_EQ(next.norm_offset, 1);
  EXPECT_EQ(mixers(golden("qwen3_5")), "LFLLF");
  const ModelConfig wrapped = golden("qwen3_5_moe_wrapped");
  EXPECT_TRUE(wrapped.wrapped);
  EXPECT_EQ(wrapped.family, "qwen3_5_moe");
  EXPECT_EQ(wrapped.rotary_dim, 6);  // 18 * 0.34 truncated
  EXPECT_TRUE(wrapped.norm_topk_prob);
  EXPECT_TRUE(wrapped.attn_output_gate);
  EXPECT_EQ(wrapped.shared_expert_intermediate_size, 19);
}

TEST(ModelConfig, FillsInWhatTransformersDefaults) {
  ConfigKeys llama = dense_keys("llama");
  llama.erase("head_dim");
  llama.erase("num_key_value_heads");
  llama["hidden_size"] = "24";
  const ModelConfig config = read(json_of(llama));
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 6);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
}

TEST(ModelConfig, HeadDimDefaultsByFamily) {
  const auto head_dim = [](ConfigKeys keys) {
    keys.erase("head_dim");
    keys["hidden_size"] = "16";
    return read(json_of(keys)).head_dim;
  };
  EXPECT_EQ(head_dim(dense_keys("llama")), 4);
  EXPECT_EQ(head_dim(moe_keys("qwen3_moe")), 4);
  EXPECT_EQ(head_dim(dense_keys("qwen3")), 128);
  EXPECT_EQ(head_dim(hybrid_keys("qwen3_next")), 256);
  EXPECT_EQ(head_dim(hybrid_keys("qwen3_5_moe_text")), 256);
}

TEST(ModelConfig, NormTopkProbDefaultsByFamily) {
  EXPECT_FALSE(read(json_of(moe_keys("qwen3_moe"))).norm_topk_prob);
  EXPECT_TRUE(read(json_of(hybrid_keys("qwen3_next"))).norm_topk_prob);
  EXPECT_TRUE(read(json_of(hybrid_keys("qwen3_5_moe_text"))).norm_topk_prob);
  EXPECT_FALSE(
      read(json_of(keys_with(hybrid_keys("qwen3_next"), {{"norm_topk_prob", "false"}}))).norm_topk_prob);
  EXPECT_EQ(
      fault_of(json_of(keys_with(hybrid_keys("qwen3_5_moe"), {{"norm_topk_prob", "false"}}))),
      "norm_topk_prob: false is not built; true (this family always renormalises) is | use another model, or "
      "another trainer");
}

TEST(ModelConfig, RopeInBothSpellings) {
  const ConfigKeys hybrid = dense_hybrid_keys();
  EXPECT_EQ(read(json_of(hybrid)).rotary_dim, 4);  // a quarter of 16
  const ModelConfig old_style = read(json_of(keys_with(
      hybrid, {{"rope_theta", "1e7"}, {"partial_rotary_factor", "0.5"}, {"rope_scaling", "null"}})));
  EXPECT_EQ(old_style.rope_theta, 1e7);
  EXPECT_EQ(old_style.rotary_dim, 8);
  const ModelConfig both = read(json_of(keys_with(
      hybrid,
      {{"rope_theta", "1e7"},
       {"partial_rotary_factor", "0.5"},
       {"rope_parameters", R"({"rope_type":"default","rope_theta":500,"partial_rotary_factor":0.9})"}})));
  EXPECT_EQ(both.rope_theta, 500);  // the dictionary wins
  EXPECT_EQ(both.rotary_dim, 14);   // 14.4 truncated
  EXPECT_EQ(
      fault_of(json_of(keys_with(hybrid, {{"partial_rotary_factor", "0.35"}}))),
      "partial_rotary_factor: rotates 5 of 16 dimensions of a head; an even number of at least 2 is needed");
  const ModelConfig beside = read(json_of(
      keys_with(hybrid, {{"partial_rotary_factor", "0.5"}, {"rope_parameters", R"({"rope_theta":500})"}})));
  EXPECT_EQ(beside.rotary_dim, 8);
  EXPECT_NE(
      fault_of(json_of(keys_with(dense_keys("llama"), {{"rope_scaling", R"({"type":"linear","factor":2})"}})))
          .find("rope_scaling.type: \"linear\" is not built"),
      std::string::npos);
  EXPECT_NE(
      fault_of(json_of(keys_with(dense_keys("qwen3"), {{"rope_parameters", R"({"rope_type":"yarn"})"}})))
          .find("rope_parameters.rope_type: \"yarn\" is not built"),
      std::string::npos);
  EXPECT_NE(fault_of(json_of(keys_with(dense_keys("qwen3"), {{"partial_rotary_factor", "0.5"}})))
                .find("partial_rotary_factor: 0.5 is not built"),
            std::string::npos);
  EXPECT_NE(fault_of(json_of(keys_with(dense_keys("qwen3"),
                                       {{"rope_parameters", R"({"full_attention":{"rope_theta":5}})"}})))
                .find("rope_parameters.full_attention"),
            std::string::npos);
  EXPECT_NE(fault_of(json_of(keys_with(dense_keys("qwen3"), {{"rope_theta", "-1"}}))).find("rope_theta: -1"),
            std::string::npos);
}

TEST(ModelConfig, TheOuterTieRulesAWrapper) {
  const auto wrapper = [](const std::string& outer, const std::string& inner) {
    ConfigKeys keys = {{"model_type", "\"qwen3_5_moe\""},
                       {"text_config", json_of(keys_with(hybrid_keys("qwen3_5_moe_text"),
                                                         {{"tie_word_embeddings", inner}}))}};
    if (!outer.empty()) keys["tie_word_embeddings"] = outer;
    return json_of(keys);
  };
  EXPECT_TRUE(read(wrapper("true", "false")).tie_word_embeddings);
  EXPECT_FALSE(read(wrapper("false", "true")).tie_word_embeddings);
  EXPECT_FALSE(read(wrapper("", "true")).tie_word_embeddings);
  EXPECT_EQ(
      warnings_of(wrapper("true", "false")),
      (std::vector<std::string>{
          "tie_word_embeddings is true for the wrapper and false in text_config; the wrapper's rules"}));
}

TEST(ModelConfig, ExpertsMayBeSpeltNumLocalExperts) {
  ConfigKeys keys = moe_keys("qwen3_moe");
  keys.erase("num_experts");
  keys["num_local_experts"] = "6";
  EXPECT_EQ(read(json_of(keys)).num_experts, 6);
  keys["num_experts"] = "7";
  EXPECT_NE(fault_of(json_of(keys)).find("num_experts: 7 contradicts num_local_experts 6"),
            std::string::npos);
}

TEST(ModelConfig, LayersFollowIntervalsStepsAndLists) {
  EXPECT_EQ(mixers(read(json_of(keys_with(hybrid_keys("qwen3_next"), {{"full_attention_interval", "2"}})))),
            "LFLF");
  EXPECT_EQ(mlps(read(json_of(keys_with(hybrid_keys("qwen3_next"), {{"decoder_sparse_step", "2"}})))),
            "DMDM");
  EXPECT_EQ(mlps(read(json_of(keys_with(moe_keys("qwen3_moe"), {{"mlp_only_layers", "[0,3]"}})))), "DMMD");
  EXPECT_EQ(mlps(read(json_of(keys_with(moe_keys("qwen3_moe"), {{"num_experts", "0"}})))), "DDDD");
  const std::string ignored = json_of(keys_with(hybrid_keys("qwen3_5_moe"), {{"mlp_only_layers", "[0]"}}));
  EXPECT_EQ(mlps(read(ignored)), "MMMM");
  EXPECT_EQ(warnings_of(ignored).size(), 1U);
}

struct Refusal {
  const char* key;
  const char* value;
  const char* fault;  // must be part of the message
};

TEST(ModelConfig, RefusesByName) {
  const Refusal cases[] = {
      {"model_type", "\"gpt2\"", "model_type: \"gpt2\" is not built; built are llama, qwen3, qwen3_moe"},
      {"model_type", "null", "model_type: is missing"},
      {"model_type", "7", "model_type: a string is needed, not 7"},
      {"use_sliding_window", "true", "use_sliding_window: true is not built; false is"},
      {"attention_bias", "true", "attention_bias: true is not built; false is"},
      {"mlp_bias", "true", "mlp_bias: true is not built; false is"},
      {"hidden_act", "\"gelu\"", "hidden_act: \"gelu\" is not built; \"silu\" is"},
      {"attention_dropout", "0.1", "attention_dropout: 0.1 is not built; 0.0 is"},
      {"attn_output_gate", "true", "attn_output_gate: true is not built; false is"},
      {"pretraining_tp", "2", "pretraining_tp: 2 is not built; 1 is"},
      {"final_logit_softcapping", "30.0", "final_logit_softcapping: 30.0 is not built; none is"},
      {"quantization_config", R"({"quant_method":"fp8"})",
       "quantization_config: {\"quant_method\":\"fp8\"} is not built"},
      {"layer_types", R"(["full_attention","sliding_attention","full_attention","full_attention"])",
       "layer_types[1]: \"sliding_attention\" is not built"},
      {"layer_types", R"(["linear_attention","full_attention","full_attention","full_attention"])",
       "layer_types[0]: \"linear_attention\" is not built"},
      {"layer_types", R"(["full_attention"])",
       "layer_types: a list of num_hidden_layers = 4 kinds is needed, not one of 1"},
      {"hidden_size", "12.0", "hidden_size: a whole number is needed, not 12.0"},
      {"hidden_size", "\"12\"", "hidden_size: a whole number is needed, not \"12\""},
      {"hidden_size", "0", "hidden_size: 0 is outside 1 to 1048576"},
      {"hidden_size", "-4", "hidden_size: -4 is outside"},
      {"hidden_size", "99999999999999999999", "hidden_size: a whole number is needed"},
      {"hidden_size", "18446744073709551615", "hidden_size: 18446744073709551615 is outside"},
      {"hidden_size", "null", "hidden_size: is missing, and this family needs it"},
      {"vocab_size", "9000000000", "vocab_size: 9000000000 is outside"},
      {"num_hidden_layers", "0", "num_hidden_layers: 0 is outside"},
      {"intermediate_size", "null", "intermediate_size: is missing"},
      {"num_key_value_heads", "3", "num_attention_heads: 4 is not a multiple of num_key_value_heads 3"},
      {"head_dim", "5", "rotates 5 of 5 dimensions of a head"},
      {"rms_norm_eps", "0", "rms_norm_eps: 0 is outside"},
      {"rms_norm_eps", "\"1e-6\"", "rms_norm_eps: a number is needed"},
      {"tie_word_embeddings", "1", "tie_word_embeddings: true or false is needed, not 1"},
  };
  for (const Refusal& refusal : cases) {
    const std::string fault =
        fault_of(json_of(keys_with(dense_keys("qwen3"), {{refusal.key, refusal.value}})));
    EXPECT_NE(fault.find(refusal.fault), std::string::npos) << refusal.key << ": " << fault;
  }
}

TEST(ModelConfig, RefusesByNameInHybrids) {
  const Refusal cases[] = {
      {"attn_output_gate", "false", "attn_output_gate: false is not built; true is"},
      {"output_gate_type", "\"sigmoid\"", "output_gate_type: \"sigmoid\" is not built"},
      {"sliding_window", "4096", "sliding_window: 4096 is not built"},
      {"linear_num_value_heads", "5",
       "linear_num_value_heads: 5 is not a multiple of linear_num_key_heads 2"},
      {"num_experts_per_tok", "6", "num_experts_per_tok: 6 is more than num_experts 5"},
      {"num_experts", "1000000", "num_experts: 1000000 is outside"},
      {"decoder_sparse_step", "0", "decoder_sparse_step: 0 is outside"},
      {"mlp_only_layers", "[1.5]", "mlp_only_layers: a whole number is needed, not 1.5"},
      {"layer_types", R"(["mamba","full_attention","full_attention","full_attention"])",
       "layer_types[0]: \"mamba\" is not built"},
      {"routed_scaling_factor", "2.5", "routed_scaling_factor: 2.5 is not built; 1.0 is"},
  };
  for (const Refusal& refusal : cases) {
    const std::string fault =
        fault_of(json_of(keys_with(hybrid_keys("qwen3_next"), {{refusal.key, refusal.value}})));
    EXPECT_NE(fault.find(refusal.fault), std::string::npos) << refusal.key << ": " << fault;
  }
  EXPECT_NE(fault_of(json_of(keys_with(dense_keys("llama"), {{"hidden_size", "14"}})))
                .find("hidden_size: 14 is not a multiple of num_attention_heads 4"),
            std::string::npos);
}

TEST(ModelConfig, RefusesSizesThatAreTooMuchTogether) {
  EXPECT_EQ(fault_of(json_of(keys_with(moe_keys("qwen3_moe"),
                                       {{"num_hidden_layers", "32768"}, {"num_experts", "32768"}}))),
            "32768 layers with 32768 experts are about 3221749760 tensors, more than the limit of 1048576 | "
            "is num_hidden_layers or num_experts mistyped?");
  EXPECT_EQ(fault_of(json_of(keys_with(hybrid_keys("qwen3_next"), {{"num_hidden_layers", "4096"},
                                                                   {"num_experts", "2"},
                                                                   {"linear_num_key_heads", "8192"},
                                                                   {"linear_num_value_heads", "8192"}})))
                .substr(0, 38),
            "4096 layers with 2 experts are about 1");
  EXPECT_EQ(fault_of(json_of(keys_with(dense_keys("qwen3"), {{"hidden_size", "1048576"},
                                                             {"intermediate_size", "1048576"},
                                                             {"num_hidden_layers", "4096"}}))),
            "asks for 13511116775800832 parameters, more than the limit of 1125899906842624 | is a size "
            "mistyped?");
}

TEST(ModelConfig, RefusesBrokenFiles) {
  const TempFolder folder;
  EXPECT_NE(error_of(ErrorKind::kModel, [&] { return read_model_config(folder.path(), nullptr); })
                .find("config.json: no such file"),
            std::string::npos);
  EXPECT_NE(fault_of("{").find("is not JSON"), std::string::npos);
  EXPECT_EQ(fault_of("[]"), "is not a JSON object | is this a model's config.json?");
  EXPECT_EQ(fault_of(R"({"model_type":"llama","hidden_size":8,"hidden_size":16})"),
            "the key \"hidden_size\" appears twice | is the file complete? mend it, or get it again");
}

TEST(ModelConfig, NeutralValuesPass) {
  const ConfigKeys neutral = {
      {"attention_dropout", "0"}, {"use_sliding_window", "false"}, {"sliding_window", "4096"},
      {"max_window_layers", "2"}, {"hidden_act", "\"silu\""},      {"quantization_config", "null"},
      {"pretraining_tp", "1"},    {"torch_dtype", "\"bfloat16\""}, {"_name_or_path", "\"x\""}};
  EXPECT_TRUE(warnings_of(json_of(keys_with(dense_keys("qwen3"), neutral))).empty());
}

TEST(ModelConfig, WarnsOfWhatItDoesNotUse) {
  EXPECT_EQ(
      warnings_of(json_of(keys_with(dense_keys("qwen3"), {{"head_dims", "8"}, {"zebra_stripes", "[1]"}}))),
      (std::vector<std::string>{"unknown key head_dims = 8 is not used; did you mean head_dim?",
                                "unknown key zebra_stripes = [1] is not used"}));
  EXPECT_EQ(warnings_of(json_of(keys_with(moe_keys("qwen3_moe"), {{"router_aux_loss_coef", "0.001"}}))),
            (std::vector<std::string>{
                "router_aux_loss_coef 0.001, output_router_logits false: the auxiliary loss is not used"}));
  const std::string wrapper = json_of({{"model_type", "\"qwen3_5_moe\""},
                                       {"text_config", json_of(hybrid_keys("qwen3_5_moe_text"))},
                                       {"rope_theta", "5"},
                                       {"vocab_size", "31"}});
  EXPECT_EQ(warnings_of(wrapper),
            (std::vector<std::string>{"rope_theta = 5 stands beside text_config and is not used; "
                                      "the one in text_config is"}));
}

}  // namespace
}  // namespace lathe
