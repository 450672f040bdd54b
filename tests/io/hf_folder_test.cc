#include "lathe/io/hf_folder.h"

#include <gtest/gtest.h>

#include "lathe/core/error.h"

#include "support/temp_folder.h"

namespace lathe {
namespace {

using test::error_of;
using test::TempFolder;

const std::string kWrapped = std::string(LATHE_GOLDENS) + "/qwen3_5_moe_wrapped/model";

void write_one(const std::string& path, const std::string& tensor, float value) {
  write_safetensors(
      path, {{tensor, "F32", {1}, [value](std::byte* to) { weights_from_float("F32", &value, 1, to); }}}, {});
}

std::string fault_of(const std::string& folder) {
  return error_of(ErrorKind::kModel, [&] { const HfFolder opened(folder); });
}

TEST(HfFolder, FindsTensorsThroughTheIndex) {
  const HfFolder folder(kWrapped);
  EXPECT_TRUE(folder.sharded());
  EXPECT_EQ(folder.files().size(), 3U);
  EXPECT_EQ(folder.tensor_names().size(), 131U);
  EXPECT_TRUE(folder.has("lm_head.weight"));
  EXPECT_FALSE(folder.has("lm_head"));
  EXPECT_EQ(folder.file_of("model.language_model.norm.weight"), "model-00003-of-00003.safetensors");
  EXPECT_EQ(folder.info("model.language_model.layers.0.linear_attn.A_log").dtype, "F32");
  EXPECT_EQ(folder.info("lm_head.weight").dtype, "BF16");
  EXPECT_NE(error_of(ErrorKind::kModel, [&] { return folder.info("nothing"); }).find("has no tensor nothing"),
            std::string::npos);
}

TEST(HfFolder, ReadsRows) {
  const HfFolder folder(kWrapped);
  std::vector<float> all(167 * 46);
  std::vector<float> two(2 * 46);
  folder.read_rows("lm_head.weight", 0, 167, 46, all.data());
  folder.read_rows("lm_head.weight", 100, 2, 46, two.data());
  for (size_t i = 0; i < two.size(); ++i) EXPECT_EQ(two[i], all[4600 + i]);
}

TEST(HfFolder, NamesFilesThatAreMissing) {
  const TempFolder temp;
  const std::string copy = temp.copy_of(kWrapped, "m");
  std::filesystem::remove(copy + "/model-00002-of-00003.safetensors");
  EXPECT_EQ(fault_of(copy), copy +
                                "/model.safetensors.index.json: names files that are not there: "
                                "model-00002-of-00003.safetensors | incomplete download or copy?");
  temp.write("m/model-00002-of-00003.safetensors", "");
  EXPECT_NE(fault_of(copy).find("model-00002-of-00003.safetensors: 0 bytes are too few"), std::string::npos);
  write_one(copy + "/model-00002-of-00003.safetensors", "other", 1);
  EXPECT_NE(
      fault_of(copy).find("says that model.language_model.layers.2.linear_attn.in_proj_qkv.weight is in "
                          "model-00002-of-00003.safetensors, but it is not there"),
      std::string::npos)
      << fault_of(copy);
}

TEST(HfFolder, RefusesBrokenIndices) {
  const TempFolder temp;
  write_one(temp / "a.safetensors", "x", 1);
  const auto with_index = [&](const std::string& index) {
    temp.write("model.safetensors.index.json", index);
    return fault_of(temp.path());
  };
  EXPECT_EQ(with_index(R"({"weight_map":{"x":"a.safetensors"}})"), "no error");
  EXPECT_NE(with_index("{").find("is not JSON"), std::string::npos);
  EXPECT_NE(with_index("{}").find("has no weight_map"), std::string::npos);
  EXPECT_NE(with_index(R"({"weight_map":{}})").find("weight_map is empty"), std::string::npos);
  EXPECT_NE(with_index(R"({"weight_map":{"x":"../a.safetensors"}})").find("a file name within the folder"),
            std::string::npos);
  EXPECT_NE(with_index(R"({"weight_map":{"x":"a.safetensors","x":"b"}})").find("\"x\" appears twice"),
            std::string::npos);
  write_one(temp / "b.safetensors", "x", 2);
  write_one(temp / "c.safetensors", "y", 2);
  EXPECT_NE(with_index(R"({"weight_map":{"x":"a.safetensors","z":"b.safetensors"}})")
                .find("tensor x is in two files, a.safetensors and b.safetensors"),
            std::string::npos);
  write_one(temp / "model.safetensors", "x", 2);
  EXPECT_NE(
      with_index(R"({"weight_map":{"x":"a.safetensors"}})").find("holds both model.safetensors and an index"),
      std::string::npos);
}

TEST(HfFolder, SaysWhatAFolderWithoutWeightsHas) {
  const TempFolder temp;
  EXPECT_NE(fault_of(temp / "nowhere").find("no such folder"), std::string::npos);
  EXPECT_NE(fault_of(temp.write("file", "x")).find("is a file; a model folder is needed"), std::string::npos);
  temp.write("pytorch_model.bin", "x");
  EXPECT_NE(fault_of(temp.path())
                .find("holds neither model.safetensors nor model.safetensors.index.json; it has "
                      "pytorch_model.bin"),
            std::string::npos);
}

}  // namespace
}  // namespace lathe
