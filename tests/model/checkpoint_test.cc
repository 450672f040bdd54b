#include "lathe/model/checkpoint.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "lathe/core/dtype.h"
#include "lathe/core/error.h"
#include "lathe/model/inspect.h"

#include "support/temp_folder.h"

#include "model/model_files.h"

namespace lathe {
namespace {

using test::bytes_of_file;
using test::error_of;
using test::TempFolder;

const char* const kGoldens[] = {"llama",   "qwen3",       "qwen3_moe",          "qwen3_next",
                                "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_wrapped"};

std::string golden_path(const std::string& name) {
  return std::string(LATHE_GOLDENS) + "/" + name + "/model";
}

// A folder with everything of it in memory, as a trainer holds it.
struct Loaded {
  explicit Loaded(const std::string& path)
      : folder(path), layout(layout_of_folder(config_of(path), folder, nullptr)) {
    for (const ParameterSpec& spec : layout.parameters) {
      values.emplace_back(static_cast<size_t>(spec.shape.size()));
      read_parameter(folder, spec, values.back());
    }
  }
  static ModelConfig config_of(const std::string& path) { return read_model_config(path, nullptr); }
  [[nodiscard]] ParameterValues source() const {
    return [this](size_t i, int64_t first, std::span<float> to) {
      std::copy_n(values[i].begin() + first, to.size(), to.begin());
    };
  }

  HfFolder folder;
  ParameterLayout layout;
  std::vector<std::vector<float>> values;
};

bool always(const std::string& /*tensor*/) {
  return true;
}
bool never(const std::string& /*tensor*/) {
  return false;
}

void expect_equal_folders(const std::string& a, const std::string& b) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(a))
    names.push_back(entry.path().filename().string());
  for (const std::string& name : names)
    EXPECT_TRUE(bytes_of_file(a + "/" + name) == bytes_of_file(b + "/" + name)) << name;
  for (const auto& entry : std::filesystem::directory_iterator(b)) {
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(a) / entry.path().filename())) << entry.path();
  }
}

// Both ways: bytes copied, and values put together from parameters and rounded again.
TEST(Export, NothingTrainedIsByteEqual) {
  for (const char* name : kGoldens) {
    SCOPED_TRACE(name);
    const Loaded model(golden_path(name));
    for (const auto& changed : {never, always}) {
      const TempFolder out;
      export_model(model.folder, model.layout, model.source(), changed, out.path());
      expect_equal_folders(golden_path(name), out.path());
    }
  }
}

// Scales are kept as they are stored, also where 1 is added to them in use: a bf16 value near 0 loses no bit.
TEST(Export, SmallNormWeightsComeBack) {
  const TempFolder temp;
  initialize_model(golden_path("qwen3_5_moe"), temp / "m", 1, "bf16");
  Loaded model(temp / "m");
  size_t norms = 0;
  for (size_t p = 0; p < model.layout.parameters.size(); ++p) {
    const ParameterSpec& spec = model.layout.parameters[p];
    if (spec.name().find("norm") == std::string::npos) continue;
    ++norms;
    for (size_t i = 0; i < model.values[p].size(); ++i) {
      const float value = (i % 2 == 0 ? 1e-3F : -1e-3F) * (1 + 0.01F * static_cast<float>(i));
      model.values[p][i] = to_float(to_bfloat16(value));
    }
  }
  EXPECT_GT(norms, 8U);
  std::filesystem::create_directories(temp / "out");
  export_model(model.folder, model.layout, model.source(), always, temp / "out");
  const Loaded again(temp / "out");
  EXPECT_EQ(again.folder.info("model.norm.weight").dtype, "BF16");
  EXPECT_EQ(again.values, model.values);
}

TEST(Export, WritesChangedTensorsOnly) {
  Loaded model(golden_path("qwen3_5_moe_wrapped"));
  for (auto& values : model.values) {
    for (float& value : values) value += 1;
  }
  const std::string trained = "model.language_model.layers.1.mlp.experts.gate_up_proj";
  const TempFolder out;
  export_model(
      model.folder, model.layout, model.source(),
      [&](const std::string& tensor) { return tensor == trained; }, out.path());
  const HfFolder written(out.path());
  for (const std::string& name : model.folder.tensor_names()) {
    const TensorInfo& info = model.folder.info(name);
    EXPECT_EQ(written.info(name).dtype, info.dtype);
    EXPECT_EQ(written.info(name).shape, info.shape);
    const bool same = std::memcmp(written.bytes(name), model.folder.bytes(name), info.bytes()) == 0;
    EXPECT_EQ(same, name != trained) << name;
  }
  std::vector<float> before(46);
  std::vector<float> after(46);
  model.folder.read_rows(trained, 30, 1, 46, before.data());
  written.read_rows(trained, 30, 1, 46, after.data());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], to_float(to_bfloat16(before[i] + 1)));
}

TEST(Export, ATiedHeadOnDiskFollowsTheEmbedding) {
  const TempFolder temp;
  const std::string source = temp.copy_of(golden_path("llama"), "tied");
  {
    const HfFolder folder(golden_path("llama"));
    std::vector<TensorToWrite> tensors;
    for (const std::string& name : folder.tensor_names()) {
      tensors.push_back(
          {name, "F32", folder.info(name).shape, nullptr, folder.bytes(name), folder.info(name).bytes()});
    }
    tensors.push_back(tensors.front());
    ASSERT_EQ(tensors.front().name, "model.embed_tokens.weight");
    tensors.back().name = "lm_head.weight";
    write_safetensors(source + "/model.safetensors", tensors, {});
  }
  Loaded model(source);
  model.values[0][7] = 42;
  const std::string out = temp.copy_of(temp.path(), "out");
  export_model(model.folder, model.layout, model.source(), always, out);
  const HfFolder written(out);
  float head = 0;
  written.read_rows("lm_head.weight", 7, 1, 1, &head);
  EXPECT_EQ(head, 42);
  EXPECT_EQ(written.file(0).metadata().at("format"), "pt");
  write_hf_tensors(out + "/gradients", model.layout, model.source(), always);
  EXPECT_EQ(SafetensorsFile(out + "/gradients").tensors().count("lm_head.weight"), 0U);
}

TEST(Export, CopiesWhatBelongsAndLeavesStaleThings) {
  const TempFolder temp;
  const std::string source = temp.copy_of(golden_path("qwen3"), "source");
  temp.write("source/tokenizer.json", "{}");
  temp.write("source/pytorch_model.bin", "old weights");
  temp.write("source/COMPLETE", "");
  std::filesystem::create_directories(source + "/trainer");
  temp.write("source/trainer/state.json", "{}");
  const std::string out = temp.copy_of(golden_path("qwen3_5_moe_wrapped"), "out");  // as left by another run
  const Loaded model(source);
  export_model(model.folder, model.layout, model.source(), never, out);
  EXPECT_TRUE(std::filesystem::exists(out + "/tokenizer.json"));
  for (const char* name : {"pytorch_model.bin", "COMPLETE", "trainer", "model.safetensors.index.json",
                           "model-00001-of-00003.safetensors"}) {
    EXPECT_FALSE(std::filesystem::exists(out + "/" + name)) << name;
  }
  EXPECT_EQ(HfFolder(out).tensor_names(), model.folder.tensor_names());
}

TEST(Export, F16OverflowIsAnError) {
  const TempFolder temp;
  temp.write("config.json", test::json_of(test::dense_keys("llama")));
  initialize_model(temp / "config.json", temp / "m", 1, "f16");
  Loaded model(temp / "m");
  std::vector<std::string> warnings;
  static_cast<void>(layout_of_folder(Loaded::config_of(temp / "m"), model.folder, &warnings));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("are F16, and are saved as such: a value beyond 65504 would stop the save"),
            std::string::npos)
      << warnings[0];
  model.values[0][0] = 70000;
  std::filesystem::create_directory(temp / "out");
  EXPECT_NE(error_of(ErrorKind::kModel,
                     [&] { export_model(model.folder, model.layout, model.source(), always, temp / "out"); })
                .find("model.embed_tokens.weight: the value 70000 does not fit into F16"),
            std::string::npos);
}

TEST(WriteHfTensors, AsksForEveryElementOnceAndForLittleAtATime) {
  const Loaded model(golden_path("qwen3_moe"));
  std::map<size_t, int64_t> asked;
  const ParameterValues counting = [&](size_t i, int64_t first, std::span<float> to) {
    asked[i] += static_cast<int64_t>(to.size());
    model.source()(i, first, to);
  };
  const TempFolder temp;
  write_hf_tensors(temp / "all.safetensors", model.layout, counting, always);
  EXPECT_EQ(asked.size(), model.layout.parameters.size());
  for (const auto& [parameter, count] : asked) {
    const ParameterSpec& spec = model.layout.parameters[parameter];
    EXPECT_EQ(count, spec.shape.size()) << spec.name();
  }
  const SafetensorsFile file(temp / "all.safetensors");
  EXPECT_EQ(file.tensors().size(), model.layout.hf_tensors.size());
  for (const auto& [name, info] : file.tensors()) {  // the golden is f32: the same bytes
    EXPECT_EQ(std::memcmp(file.bytes(info), model.folder.bytes(name), info.bytes()), 0) << name;
  }
  write_hf_tensors(temp / "one.safetensors", model.layout, model.source(),
                   [](const std::string& name) { return name == "model.norm.weight"; });
  EXPECT_EQ(SafetensorsFile(temp / "one.safetensors").tensors().size(), 1U);
}

// A tensor of several parts, made of stacks whose borders lie within a part.
TEST(WriteHfTensors, TensorsLargerThanAPartAreWhole) {
  const int64_t rows = 3 * static_cast<int64_t>(kTensorPartBytes) / 4 / 1000 + 7;
  ParameterLayout layout;
  layout.hf_tensors["w"] = Shape{rows, 1000};
  for (const int64_t first : {int64_t{0}, rows / 5}) {
    ParameterSpec& spec = layout.parameters.emplace_back();
    const int64_t count = first == 0 ? rows / 5 : rows - first;
    spec.shape = Shape{count + 3, 1000};
    spec.row_elements = 1000;
    spec.slices = {{.tensor = "w", .hf_row = first, .row = 3, .rows = count}};
  }
  size_t largest = 0;
  const ParameterValues values = [&](size_t parameter, int64_t first, std::span<float> to) {
    largest = std::max(largest, to.size());
    const int64_t shift = (parameter == 0 ? 0 : rows / 5 * 1000) - 3000;
    for (size_t i = 0; i < to.size(); ++i)
      to[i] = static_cast<float>(first + shift + static_cast<int64_t>(i));
  };
  const TempFolder temp;
  write_hf_tensors(temp / "w.safetensors", layout, values, always);
  const SafetensorsFile file(temp / "w.safetensors");
  const TensorInfo& info = file.tensors().at("w");
  std::vector<float> written(static_cast<size_t>(rows) * 1000);
  ASSERT_EQ(info.bytes(), written.size() * sizeof(float));
  std::memcpy(written.data(), file.bytes(info), info.bytes());
  for (size_t i = 0; i < written.size(); ++i) ASSERT_EQ(written[i], static_cast<float>(i));
  EXPECT_LE(largest * sizeof(float), kTensorPartBytes);
}

TEST(ReadParameter, RefusesNanAndInfinity) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const TempFolder temp;
    Loaded model(golden_path("qwen3_next"));
    const ParameterSpec* spec = find_parameter(model.layout, ParameterRole::kInProjZ, 0);
    model.values[static_cast<size_t>(spec - model.layout.parameters.data())][3] = bad;
    export_model(model.folder, model.layout, model.source(), always, temp.path());
    const std::string fault = error_of(ErrorKind::kModel, [&] { const Loaded again(temp.path()); });
    EXPECT_NE(fault.find("model.safetensors: tensor model.layers.0.linear_attn.in_proj_qkvz.weight holds "),
              std::string::npos)
        << fault;
    EXPECT_NE(fault.find(std::isnan(bad) ? "nan" : "-inf"), std::string::npos);
  }
}

ModelReport report_of_new_model(const TempFolder& temp, const test::ConfigKeys& keys,
                                const std::string& dtype) {
  temp.write("config.json", test::json_of(keys));
  std::vector<std::string> warnings;
  initialize_model(temp / "config.json", temp / "new", 3, dtype, &warnings);
  EXPECT_TRUE(warnings.empty());
  const Loaded opened(temp / "new");  // every tensor is there and finite
  return inspect_model(temp / "new");
}

TEST(Initialize, OpensAgainInEveryFamily) {
  const auto families = {test::dense_keys("llama"),   test::dense_keys("qwen3"),
                         test::moe_keys("qwen3_moe"), test::hybrid_keys("qwen3_next"),
                         test::dense_hybrid_keys(),   test::hybrid_keys("qwen3_5_moe_text")};
  for (const auto& keys : families) {
    const TempFolder temp;
    const ModelReport report = report_of_new_model(temp, keys, "f32");
    EXPECT_TRUE(report.missing.empty());
    EXPECT_TRUE(report.unused.empty());
    EXPECT_TRUE(report.problems.empty());
    const bool fused = report.family == "qwen3_5_moe";
    for (const InspectedTensor& tensor : report.tensors) {
      EXPECT_EQ(tensor.dtype, "F32");
      EXPECT_TRUE(fused || tensor.name.find("experts.gate_up_proj") == std::string::npos);
    }
  }
}

TEST(Initialize, ValuesFollowTransformers) {
  const TempFolder temp;
  report_of_new_model(temp, test::keys_with(test::hybrid_keys("qwen3_next"), {{"vocab_size", "4000"}}),
                      "bf16");
  const Loaded model(temp / "new");
  for (const std::string& name : model.folder.tensor_names()) {
    const bool f32 = name.ends_with("A_log") || name.ends_with("linear_attn.norm.weight");
    EXPECT_EQ(model.folder.info(name).dtype, f32 ? "F32" : "BF16") << name;
  }
  const auto values = [&](ParameterRole role, int layer) {
    return model.values[static_cast<size_t>(find_parameter(model.layout, role, layer) -
                                            model.layout.parameters.data())];
  };
  EXPECT_EQ(values(ParameterRole::kInputNorm, 0), std::vector<float>(12, 0));  // 1 + w
  EXPECT_EQ(values(ParameterRole::kQNorm, 3), std::vector<float>(16, 0));
  EXPECT_EQ(values(ParameterRole::kGatedNorm, 0), std::vector<float>(3, 1));
  EXPECT_EQ(values(ParameterRole::kDtBias, 0), std::vector<float>(6, 1));
  for (const float value : values(ParameterRole::kALog, 1)) {
    EXPECT_GE(value, std::log(0.0099F));
    EXPECT_LE(value, std::log(16.01F));
  }
  double sum = 0;
  double squares = 0;
  const std::vector<float> table = values(ParameterRole::kEmbedding, -1);
  for (const float value : table) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(sum / static_cast<double>(table.size()), 0, 5e-4);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(table.size())), 0.02, 5e-4);
}

TEST(Initialize, DependsOnTheSeedAlone) {
  const TempFolder temp;
  temp.write("config.json", test::json_of(test::moe_keys("qwen3_moe")));
  for (const auto& [name, seed] : {std::pair{"a", 5U}, std::pair{"b", 5U}, std::pair{"c", 6U}}) {
    initialize_model(temp / "config.json", temp / name, seed, "f32");
  }
  EXPECT_TRUE(bytes_of_file(temp / "a/model.safetensors") == bytes_of_file(temp / "b/model.safetensors"));
  EXPECT_FALSE(bytes_of_file(temp / "a/model.safetensors") == bytes_of_file(temp / "c/model.safetensors"));
}

TEST(Initialize, ShardsHoldTheSameValues) {
  const TempFolder temp;
  temp.write("config.json", test::json_of(test::moe_keys("qwen3_moe")));
  initialize_model(temp / "config.json", temp / "one", 5, "f32");
  size_t made = 0;
  initialize_model(temp / "config.json", temp / "many", 5, "f32", nullptr, 4000, [&made] { ++made; });
  const Loaded one(temp / "one");
  const Loaded many(temp / "many");
  EXPECT_TRUE(many.folder.sharded());
  EXPECT_GT(many.folder.files().size(), 3U);
  EXPECT_EQ(made, many.folder.tensor_names().size());
  EXPECT_EQ(one.values, many.values);
}

TEST(Initialize, AWrapperBecomesItsTextPart) {
  const TempFolder temp;
  std::vector<std::string> warnings;
  initialize_model(golden_path("qwen3_5_moe_wrapped"), temp / "m", 5, "f32", &warnings);
  const ModelConfig config = read_model_config(temp / "m", nullptr);
  EXPECT_FALSE(config.wrapped);
  EXPECT_EQ(config.family, "qwen3_5_moe");
  const std::string text = bytes_of_file(temp / "m/config.json");
  EXPECT_NE(text.find("\"Qwen3_5MoeForCausalLM\""), std::string::npos);
  EXPECT_NE(text.find("\"dtype\": \"float32\""), std::string::npos);
  EXPECT_NE(text.find("\"mtp_num_hidden_layers\": 0"), std::string::npos);
  ASSERT_EQ(warnings.size(), 3U);
  EXPECT_NE(warnings[1].find("the vision part cannot be initialised"), std::string::npos);
  const Loaded opened(temp / "m");
  EXPECT_EQ(opened.layout.hf_tensors.count("model.embed_tokens.weight"), 1U);
}

TEST(Initialize, RefusesWhatIsThere) {
  const TempFolder temp;
  const std::string config = temp.write("config.json", test::json_of(test::dense_keys("llama")));
  const auto fault = [&](const std::string& to, const std::string& dtype) {
    return error_of(ErrorKind::kConfig, [&] { initialize_model(config, to, 1, dtype); });
  };
  EXPECT_NE(fault(temp.path(), "f32").find("exists and is not an empty folder"), std::string::npos);
  EXPECT_NE(fault(config, "f32").find("exists and is not an empty folder"), std::string::npos);
  EXPECT_EQ(fault(temp / "x", "fp8"), "--dtype: \"fp8\" is not one of f32, bf16, f16");
  std::filesystem::create_directory(temp / "empty");
  EXPECT_EQ(fault(temp / "empty/", "f32"), "no error");
  EXPECT_TRUE(std::filesystem::exists(temp / "empty/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(temp / "empty.partial"));
}

TEST(Inspect, ReportsFoldersAndFiles) {
  const ModelReport wrapped = inspect_model(golden_path("qwen3_5_moe_wrapped"));
  EXPECT_EQ(wrapped.family, "qwen3_5_moe");
  EXPECT_EQ(wrapped.tensors.size(), 131U);
  EXPECT_EQ(wrapped.unused.size(), 59U);
  EXPECT_EQ(wrapped.parameters, 143049);
  EXPECT_TRUE(wrapped.problems.empty());
  const ModelReport tied = inspect_model(golden_path("llama"));
  EXPECT_EQ(tied.active_parameters, tied.parameters);  // the table is the head
  const ModelReport file = inspect_model(golden_path("llama") + "/model.safetensors");
  EXPECT_EQ(file.family, "");
  EXPECT_EQ(file.parameters, 46452);
  EXPECT_EQ(file.tensors[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(file.tensors[0].shape, (std::vector<int64_t>{97, 42}));

  const TempFolder temp;
  const std::string broken = temp.copy_of(golden_path("qwen3"), "m");
  temp.write("m/config.json",
             test::json_of(test::keys_with(test::dense_keys("qwen3"), {{"num_hidden_layers", "5"}})));
  const ModelReport report = inspect_model(broken);
  EXPECT_EQ(report.missing.size(), 22U);
  EXPECT_FALSE(report.problems.empty());
  temp.write("m/config.json", R"({"model_type":"gpt2"})");
  EXPECT_EQ(inspect_model(broken).problems.size(), 1U);
}

}  // namespace
}  // namespace lathe
