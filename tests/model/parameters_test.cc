#include "lathe/model/parameters.h"

#include <gtest/gtest.h>

#include "lathe/core/error.h"
#include "lathe/io/hf_folder.h"

#include "support/temp_folder.h"

#include "model/model_files.h"

namespace lathe {
namespace {

using test::error_of;
using test::TempFolder;

const char* const kGoldens[] = {"llama",   "qwen3",       "qwen3_moe",          "qwen3_next",
                                "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_wrapped"};

std::string golden_path(const std::string& name) {
  return std::string(LATHE_GOLDENS) + "/" + name + "/model";
}

ModelConfig config_of(const std::string& text) {
  const TempFolder folder;
  folder.write("config.json", text);
  return read_model_config(folder.path(), nullptr);
}

// Every row of every parameter and of every tensor is covered once.
void expect_exact_cover(const ParameterLayout& layout) {
  std::map<std::string, std::vector<int>> hf_rows;
  std::map<std::string, int64_t> hf_width;
  for (const ParameterSpec& spec : layout.parameters) {
    std::vector<int> rows(static_cast<size_t>(spec.rows()), 0);
    for (const HfSlice& slice : spec.slices) {
      ASSERT_EQ(layout.hf_tensors.count(slice.tensor), 1U) << slice.tensor;
      const int64_t hf_count = layout.hf_tensors.at(slice.tensor).size() / spec.row_elements;
      auto& covered = hf_rows[slice.tensor];
      covered.resize(static_cast<size_t>(hf_count), 0);
      const auto width = hf_width.try_emplace(slice.tensor, spec.row_elements).first;
      EXPECT_EQ(width->second, spec.row_elements) << slice.tensor;
      ASSERT_LE(slice.hf_row + slice.rows, hf_count) << slice.tensor;
      ASSERT_LE(slice.row + slice.rows, spec.rows()) << spec.name();
      for (int64_t i = 0; i < slice.rows; ++i) {
        ++rows[static_cast<size_t>(slice.row + i)];
        ++covered[static_cast<size_t>(slice.hf_row + i)];
      }
    }
    for (const int count : rows) ASSERT_EQ(count, 1) << spec.name();
  }
  EXPECT_EQ(hf_rows.size(), layout.hf_tensors.size());
  for (const auto& [name, rows] : hf_rows) {
    for (const int count : rows) ASSERT_EQ(count, 1) << name;
  }
}

TEST(Parameters, SlicesCoverEveryRowOnce) {
  for (const char* name : kGoldens) {
    SCOPED_TRACE(name);
    const ModelConfig config = read_model_config(golden_path(name), nullptr);
    const HfFolder folder(golden_path(name));
    expect_exact_cover(layout_of_folder(config, folder, nullptr));
    for (const bool fused : {false, true}) {
      HfNaming naming = usual_naming(config);
      naming.fused_experts = fused;
      expect_exact_cover(layout_from_names(config, naming));
    }
  }
}

TEST(Parameters, GoldenFoldersHoldNothingUnexpected) {
  for (const char* name : kGoldens) {
    SCOPED_TRACE(name);
    std::vector<std::string> warnings;
    const ModelConfig config = read_model_config(golden_path(name), nullptr);
    const HfFolder folder(golden_path(name));
    const ParameterLayout layout = layout_of_folder(config, folder, &warnings);
    EXPECT_TRUE(warnings.empty());
    EXPECT_EQ(layout.hf_tensors.size() + layout.passthrough.size(), folder.tensor_names().size());
    EXPECT_EQ(layout.passthrough.size(), std::string(name) == "qwen3_5_moe_wrapped" ? 59U : 0U);
    int64_t count = 0;
    for (const ParameterSpec& spec : layout.parameters) count += spec.shape.size();
    EXPECT_EQ(count, parameter_count(config));
  }
}

// The rows of the grouped tensors, as the formulas of the layout give them.
TEST(Parameters, UngroupsQwen3Next) {
  const ModelConfig config = config_of(test::json_of(test::hybrid_keys("qwen3_next")));
  const ParameterLayout layout = layout_from_names(config, usual_naming(config));
  const int64_t dk = 5;
  const int64_t dv = 3;
  const int64_t r = 3;
  const int64_t block = 2 * dk + 2 * r * dv;
  const auto hf_row_of = [&](ParameterRole role, int64_t row) -> int64_t {
    for (const HfSlice& slice : find_parameter(layout, role, 0)->slices) {
      if (row >= slice.row && row < slice.row + slice.rows) return slice.hf_row + row - slice.row;
    }
    return -1;
  };
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t m = 0; m < dk; ++m) {
      EXPECT_EQ(hf_row_of(ParameterRole::kInProjQkv, g * dk + m), g * block + m);
      EXPECT_EQ(hf_row_of(ParameterRole::kInProjQkv, 2 * dk + g * dk + m), g * block + dk + m);
    }
    for (int64_t j = 0; j < r; ++j) {
      const int64_t head = g * r + j;
      for (int64_t m = 0; m < dv; ++m) {
        EXPECT_EQ(hf_row_of(ParameterRole::kInProjQkv, 4 * dk + head * dv + m),
                  g * block + 2 * dk + j * dv + m);
        EXPECT_EQ(hf_row_of(ParameterRole::kInProjZ, head * dv + m),
                  g * block + 2 * dk + r * dv + j * dv + m);
      }
      EXPECT_EQ(hf_row_of(ParameterRole::kInProjBa, head), g * 2 * r + j);
      EXPECT_EQ(hf_row_of(ParameterRole::kInProjBa, 2 * r + head), g * 2 * r + r + j);
    }
  }
}

std::string big_hybrid(const std::string& type, const test::ConfigKeys& sizes) {
  return test::json_of(test::keys_with({{"model_type", "\"" + type + "\""},
                                        {"head_dim", "256"},
                                        {"linear_num_key_heads", "16"},
                                        {"linear_key_head_dim", "128"},
                                        {"linear_value_head_dim", "128"},
                                        {"num_key_value_heads", "2"}},
                                       sizes));
}

TEST(Parameters, CountsOfTheReleasedModels) {
  const ModelConfig m397 =
      config_of(big_hybrid("qwen3_5_moe", {{"vocab_size", "248320"},
                                           {"hidden_size", "4096"},
                                           {"num_hidden_layers", "60"},
                                           {"num_attention_heads", "32"},
                                           {"linear_num_value_heads", "64"},
                                           {"num_experts", "512"},
                                           {"num_experts_per_tok", "10"},
                                           {"moe_intermediate_size", "1024"},
                                           {"shared_expert_intermediate_size", "1024"}}));
  EXPECT_EQ(parameter_count(m397), 396346350336);
  EXPECT_NEAR(static_cast<double>(active_parameter_count(m397)), 16.33e9, 5e6);
  const ModelConfig m35 = config_of(big_hybrid("qwen3_5_moe", {{"vocab_size", "248320"},
                                                               {"hidden_size", "2048"},
                                                               {"num_hidden_layers", "40"},
                                                               {"num_attention_heads", "16"},
                                                               {"linear_num_value_heads", "32"},
                                                               {"num_experts", "256"},
                                                               {"num_experts_per_tok", "8"},
                                                               {"moe_intermediate_size", "512"},
                                                               {"shared_expert_intermediate_size", "512"}}));
  EXPECT_EQ(parameter_count(m35), 34660610688);
  EXPECT_NEAR(static_cast<double>(active_parameter_count(m35)), 2.95e9, 5e6);
  const ModelConfig next = config_of(big_hybrid("qwen3_next", {{"vocab_size", "151936"},
                                                               {"hidden_size", "2048"},
                                                               {"num_hidden_layers", "48"},
                                                               {"num_attention_heads", "16"},
                                                               {"linear_num_value_heads", "32"},
                                                               {"num_experts", "512"},
                                                               {"num_experts_per_tok", "10"},
                                                               {"moe_intermediate_size", "512"},
                                                               {"shared_expert_intermediate_size", "512"}}));
  EXPECT_EQ(parameter_count(next), 79674391296);
  EXPECT_NEAR(static_cast<double>(active_parameter_count(next)), 3.56e9, 5e6);
  const auto moe = [](const char* hidden, const char* layers, const char* heads, const char* width) {
    return parameter_count(config_of(test::json_of({{"model_type", "\"qwen3_moe\""},
                                                    {"vocab_size", "151936"},
                                                    {"hidden_size", hidden},
                                                    {"num_hidden_layers", layers},
                                                    {"num_attention_heads", heads},
                                                    {"num_key_value_heads", "4"},
                                                    {"head_dim", "128"},
                                                    {"num_experts", "128"},
                                                    {"moe_intermediate_size", width}})));
  };
  EXPECT_EQ(moe("2048", "48", "32", "768"), 30532122624);
  EXPECT_EQ(moe("4096", "94", "64", "1536"), 235093634560);
}

TEST(Parameters, TensorsOfTheReleasedModels) {
  ModelConfig config = config_of(big_hybrid("qwen3_5_moe", {{"vocab_size", "248320"},
                                                            {"hidden_size", "4096"},
                                                            {"num_hidden_layers", "60"},
                                                            {"num_attention_heads", "32"},
                                                            {"linear_num_value_heads", "64"},
                                                            {"num_experts", "512"},
                                                            {"num_experts_per_tok", "10"},
                                                            {"moe_intermediate_size", "1024"},
                                                            {"shared_expert_intermediate_size", "1024"}}));
  config.wrapped = true;
  const ParameterLayout layout = layout_from_names(config, usual_naming(config));
  EXPECT_EQ(layout.hf_tensors.size(), 1038U);
  const std::string at = "model.language_model.layers.";
  EXPECT_EQ(layout.hf_tensors.at(at + "3.self_attn.q_proj.weight"), (Shape{16384, 4096}));
  EXPECT_EQ(layout.hf_tensors.at(at + "0.linear_attn.conv1d.weight"), (Shape{12288, 1, 4}));
  EXPECT_EQ(layout.hf_tensors.at(at + "0.mlp.experts.gate_up_proj"), (Shape{512, 2048, 4096}));
  EXPECT_EQ(layout.hf_tensors.at(at + "0.mlp.shared_expert_gate.weight"), (Shape{1, 4096}));
}

TEST(Parameters, NamesAndKinds) {
  const ModelConfig config = read_model_config(golden_path("qwen3_next"), nullptr);
  const ParameterLayout layout = layout_from_names(config, usual_naming(config));
  const ParameterSpec* experts = find_parameter(layout, ParameterRole::kExpertsGateUp, 2);
  ASSERT_NE(experts, nullptr);
  EXPECT_EQ(experts->name(), "layers.2.experts_gate_up");
  EXPECT_EQ(experts->hf_names().size(), 22U);
  EXPECT_EQ(experts->hf_names()[1], "model.layers.2.mlp.experts.0.up_proj.weight");
  EXPECT_EQ(find_parameter(layout, ParameterRole::kExpertsGateUp, 1), nullptr);  // a dense layer
  EXPECT_EQ(find_parameter(layout, ParameterRole::kInProjQkv, 0)->hf_names(),
            (std::vector<std::string>{"model.layers.0.linear_attn.in_proj_qkvz.weight"}));
  for (const ParameterSpec& spec : layout.parameters) {
    EXPECT_EQ(spec.is_matrix(), spec.shape.rank() > 1 && spec.role != ParameterRole::kConv) << spec.name();
  }
  EXPECT_EQ(layout.parameters.front().role, ParameterRole::kEmbedding);
  EXPECT_EQ(layout.parameters.back().role, ParameterRole::kLmHead);
}

// Writes the golden folder again with tensors renamed, dropped or changed.
class ChangedFolder {
 public:
  explicit ChangedFolder(const std::string& golden) : golden_(golden), source_(golden_path(golden)) {
    for (const std::string& name : source_.tensor_names()) {
      const TensorInfo& info = source_.info(name);
      tensors[name] = {name, info.dtype, info.shape, nullptr, source_.bytes(name), info.bytes()};
    }
  }
  std::map<std::string, TensorToWrite> tensors;

  void rename(const std::string& from, const std::string& to) {
    tensors[to] = tensors.at(from);
    tensors[to].name = to;
    tensors.erase(from);
  }
  void rename_prefix(const std::string& from, const std::string& to) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) {
      if (name.starts_with(from)) names.push_back(name);
    }
    for (const std::string& name : names) rename(name, to + name.substr(from.size()));
  }
  [[nodiscard]] ParameterLayout layout(std::vector<std::string>* warnings = nullptr) const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, tensor] : tensors) list.push_back(tensor);
    write_safetensors(temp_ / "model.safetensors", list, {});
    ModelConfig config = read_model_config(golden_path(golden_), nullptr);
    return layout_of_folder(config, HfFolder(temp_.path()), warnings);
  }
  // Without the folder's path.
  [[nodiscard]] std::string fault() const {
    const std::string text = error_of(ErrorKind::kModel, [&] { return layout(); });
    return text.starts_with(temp_.path()) ? text.substr(temp_.path().size() + 2) : text;
  }

 private:
  TempFolder temp_;
  std::string golden_;
  HfFolder source_;
};

TEST(FolderLayout, NamesTheMissingTensor) {
  ChangedFolder folder("llama");
  folder.rename("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.upp_proj.weight");
  EXPECT_EQ(folder.fault(),
            "1 tensor that config.json (llama, 3 layers) needs is missing: model.layers.1.mlp.up_proj.weight "
            "[58, 42] = "
            "[intermediate_size, hidden_size] | the folder has model.layers.1.mlp.upp_proj.weight, which "
            "nothing reads; "
            "every weight must be there: nothing is initialised at random");
}

TEST(FolderLayout, ListsTenMissingTensors) {
  ChangedFolder folder("qwen3_moe");
  for (int e = 0; e < 10; ++e) {
    folder.tensors.erase(fmt::format("model.layers.1.mlp.experts.{}.down_proj.weight", e));
    folder.tensors.erase(fmt::format("model.layers.3.mlp.experts.{}.down_proj.weight", e));
  }
  const std::string fault = folder.fault();
  EXPECT_TRUE(fault.starts_with("20 tensors that config.json (qwen3_moe, 4 layers) needs are missing: "))
      << fault;
  EXPECT_NE(fault.find("; and 10 more |"), std::string::npos) << fault;
}

TEST(FolderLayout, NamesTheWrongShapeAndDtype) {
  ChangedFolder folder("llama");
  folder.tensors["model.layers.0.mlp.up_proj.weight"].shape = {42, 58};
  EXPECT_EQ(
      folder.fault(),
      "model.safetensors: model.layers.0.mlp.up_proj.weight has shape [42, 58]; config.json needs [58, 42] = "
      "[intermediate_size, hidden_size] | config.json and the weights must belong together");
  ChangedFolder other("llama");
  other.tensors["model.norm.weight"].dtype = "I32";
  EXPECT_NE(other.fault().find("model.norm.weight has dtype I32; F32, BF16 or F16 is needed"),
            std::string::npos);
}

TEST(FolderLayout, FindsThePrefix) {
  for (const std::string prefix : {"model.language_model.", "model.", "language_model.model.", ""}) {
    ChangedFolder folder("qwen3_5_moe_wrapped");
    if (prefix != "model.language_model.") folder.rename_prefix("model.language_model.", prefix);
    std::vector<std::string> warnings;
    const ParameterLayout layout = folder.layout(&warnings);
    EXPECT_EQ(layout.hf_tensors.count(prefix + "layers.3.self_attn.v_proj.weight"), 1U) << prefix;
    EXPECT_EQ(layout.passthrough.size(), 59U);
    EXPECT_TRUE(warnings.empty());
  }
}

TEST(FolderLayout, TwoDecodersUnderTwoPrefixesAreRefused) {
  ChangedFolder folder("qwen3_5_moe_wrapped");
  auto second = folder.tensors.at("model.language_model.embed_tokens.weight");
  second.name = "model.embed_tokens.weight";
  folder.tensors[second.name] = second;
  EXPECT_NE(error_of(ErrorKind::kModel, [&] { return folder.layout(nullptr); })
                .find("model.language_model.embed_tokens.weight and model.embed_tokens.weight are both "
                      "there: which is "
                      "the decoder?"),
            std::string::npos);
}

TEST(FolderLayout, VisionAndMtpUnderOtherPrefixes) {
  ChangedFolder folder("qwen3_5_moe_wrapped");
  folder.rename_prefix("model.visual.", "visual.");
  folder.rename_prefix("mtp.", "model.mtp.");
  std::vector<std::string> warnings;
  EXPECT_EQ(folder.layout(&warnings).passthrough.size(), 59U);
  EXPECT_TRUE(warnings.empty());
}

TEST(FolderLayout, WarnsOfWhatNothingReads) {
  ChangedFolder folder("qwen3");
  folder.tensors["model.rotary.inv_freq"] = folder.tensors["model.norm.weight"];
  folder.tensors["model.rotary.inv_freq"].name = "model.rotary.inv_freq";
  std::vector<std::string> warnings;
  const ParameterLayout layout = folder.layout(&warnings);
  EXPECT_EQ(layout.passthrough, (std::vector<std::string>{"model.rotary.inv_freq"}));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(
      warnings[0].find("1 tensor the decoder does not read, copied through unchanged: model.rotary.inv_freq"),
      std::string::npos);
  folder.rename("model.rotary.inv_freq", "model.layers.0.self_attn.q_proj.bias");
  EXPECT_NE(folder.fault().find("model.layers.0.self_attn.q_proj.bias would change what the layer computes"),
            std::string::npos);
}

TEST(FolderLayout, ExpertsMayBeMixedLayerByLayer) {
  ChangedFolder folder("qwen3_5_moe");  // fused: 9 experts of width 11, hidden 38
  const TensorToWrite stack = folder.tensors.at("model.layers.1.mlp.experts.down_proj");
  folder.tensors.erase("model.layers.1.mlp.experts.down_proj");
  for (int e = 0; e < 9; ++e) {
    TensorToWrite one = stack;
    one.name = fmt::format("model.layers.1.mlp.experts.{}.down_proj.weight", e);
    one.shape = {38, 11};
    one.source = stack.source + e * 38 * 11 * 4;
    one.source_bytes = 38 * 11 * 4;
    folder.tensors[one.name] = one;
  }
  const ParameterLayout layout = folder.layout();
  expect_exact_cover(layout);
  EXPECT_EQ(find_parameter(layout, ParameterRole::kExpertsDown, 1)->slices.size(), 9U);
  EXPECT_EQ(find_parameter(layout, ParameterRole::kExpertsGateUp, 1)->slices.size(), 1U);
  EXPECT_EQ(find_parameter(layout, ParameterRole::kExpertsDown, 0)->slices.size(), 1U);
  folder.tensors[stack.name] = stack;
  EXPECT_NE(folder.fault().find("are both there: which holds the experts?"), std::string::npos);
}

TEST(FolderLayout, RefusesTransposedExperts) {
  ChangedFolder folder("qwen3_5_moe");
  folder.tensors["model.layers.0.mlp.experts.down_proj"].shape = {9, 11, 38};
  EXPECT_NE(
      folder.fault().find("model.layers.0.mlp.experts.down_proj has shape [9, 11, 38]; config.json needs "
                          "[9, 38, 11] = [num_experts, hidden_size, moe_intermediate_size]"),
      std::string::npos);
}

TEST(FolderLayout, ATiedHeadOnDiskMustEqualTheEmbedding) {
  ChangedFolder folder("llama");
  TensorToWrite head = folder.tensors.at("model.embed_tokens.weight");
  head.name = "lm_head.weight";
  folder.tensors["lm_head.weight"] = head;
  const ParameterLayout layout = folder.layout();
  EXPECT_EQ(layout.aliases.at("lm_head.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(layout.hf_tensors.count("lm_head.weight"), 0U);
  EXPECT_TRUE(layout.passthrough.empty());

  std::vector<float> values(97 * 42);
  std::memcpy(values.data(), head.source, values.size() * sizeof(float));
  values[5 * 42 + 1] += 1;
  folder.tensors["lm_head.weight"].source =
      static_cast<const std::byte*>(static_cast<const void*>(values.data()));
  EXPECT_NE(
      folder.fault().find("lm_head.weight differs from model.embed_tokens.weight (first in row 5) though "
                          "config.json says tie_word_embeddings true"),
      std::string::npos);
}

TEST(FolderLayout, AnUntiedHeadMustBeThere) {
  ChangedFolder folder("qwen3_5_moe_wrapped");
  folder.tensors.erase("lm_head.weight");
  const std::string fault = folder.fault();
  EXPECT_NE(
      fault.find("lm_head.weight [167, 46] = [vocab_size, hidden_size] | tie_word_embeddings is false in "
                 "config.json (the one beside text_config rules)"),
      std::string::npos)
      << fault;
}

}  // namespace
}  // namespace lathe
