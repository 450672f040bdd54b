// Models that cannot be used: exit code 4, with the file, the tensor, the value and what to do, before anything runs.
#include <cmath>
#include <cstring>
#include <limits>

#include <nlohmann/json.hpp>

#include "cli/golden_run.h"

namespace lathe {
namespace {

using nlohmann::json;

class ModelFiles : public GoldenRun {
 protected:
  void SetUp() override {
    GoldenRun::SetUp();
    whole_ = bytes(kFile);
    uint64_t length = 0;
    std::memcpy(&length, whole_.data(), sizeof(length));
    header_ = json::parse(whole_.substr(8, length));
    data_ = whole_.substr(8 + length);
  }

  static std::string with_header(const std::string& header, const std::string& data) {
    const uint64_t length = header.size();
    std::string out(sizeof(length), '\0');
    std::memcpy(out.data(), &length, sizeof(length));
    return out + header + data;
  }
  [[nodiscard]] std::string with_header(const json& header) const {
    return with_header(header.dump(), data_);
  }
  // The header with one field of a tensor changed.
  [[nodiscard]] std::string with_entry(const std::string& tensor, const std::string& field,
                                       const json& value) const {
    json header = header_;
    header[tensor][field] = value;
    return with_header(header);
  }
  [[nodiscard]] std::string with_value(const std::string& tensor, float value) const {
    std::string data = data_;
    std::memcpy(data.data() + header_.at(tensor).at("data_offsets").at(0).get<size_t>(), &value,
                sizeof(value));
    return with_header(header_.dump(), data);
  }

  // What `lathe score` and `lathe train` say of this model.safetensors; `{}` stands for the model folder.
  static void expect_fault(const std::string& content, std::string error) {
    file(kFile, content);
    const std::string folder = (std::filesystem::current_path() / "model").string();
    error.replace(error.find("{}"), 2, folder);
    for (const Finished& done : {score(), train()}) {
      expect_refused(done, 4, "error: " + error);
      EXPECT_NE(done.err.find("\nhint: "), std::string::npos) << done.err;
    }
  }

  static constexpr const char* kFile = "model/model.safetensors";
  static constexpr const char* kTable = "model.embed_tokens.weight";
  std::string whole_;
  json header_;
  std::string data_;
};

TEST_F(ModelFiles, FilesThatAreNotWhole) {
  const std::string at = "{}/model.safetensors: ";
  expect_fault("", at + "0 bytes are too few for a safetensors file\nhint: incomplete download or copy?\n");
  expect_fault("1234567", at + "7 bytes are too few for a safetensors file\n");
  expect_fault(whole_.substr(0, whole_.size() - 1),
               at + "header says 185808 bytes of data but the file has 185807\n");
  expect_fault(whole_ + '\0',
               at + "header says 185808 bytes of data but the file has 185809\nhint: bytes follow the "
                    "last tensor: a damaged copy?\n");
  std::string huge = whole_;
  huge[7] = '\x80';
  huge[0] = huge[1] = '\0';
  expect_fault(
      huge, at + "the header should be 9223372036854775808 bytes long but 188760 bytes follow its length\n");
  expect_fault(
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
      at +
          "not a safetensors file (70 bytes)\nhint: this is a git-lfs pointer, not the file itself: fetch it "
          "with `git lfs pull`\n");
  expect_fault(
      "<!DOCTYPE html><html><body>404</body></html>",
      at + "not a safetensors file (44 bytes)\nhint: this is a web page, not the file itself: download it "
           "again\n");
  expect_fault(std::string("\x1f\x8b\x08\0\0\0\0\0\0\0\0\0", 12),
               at + "not a safetensors file (12 bytes)\nhint: this is a gzip");
}

TEST_F(ModelFiles, HeadersThatLie) {
  const std::string at = std::string("{}/model.safetensors: ");
  const std::string table = at + "tensor " + kTable + ": ";
  expect_fault(with_entry(kTable, "shape", {4294967296, 4294967296}),
               table + "shape [4294967296,4294967296] overflows 64 bits\n");
  expect_fault(with_entry(kTable, "data_offsets", {16296, 0}),
               table + "data begin at 16296 after they end at 0\n");
  expect_fault(with_entry(kTable, "data_offsets", {-8, 16288}),
               table + "data_offsets must be whole numbers of at least 0, not -8\n");
  expect_fault(with_entry(kTable, "shape", {97, 41}),
               table + "F32 [97, 41] takes 15908 bytes, but data_offsets");
  const json gate = header_.at("model.layers.0.mlp.gate_proj.weight").at("data_offsets");
  expect_fault(
      with_entry("model.layers.0.mlp.up_proj.weight", "data_offsets", gate),
      at + "tensors model.layers.0.mlp.gate_proj.weight and model.layers.0.mlp.up_proj.weight overlap\n");
  std::string twice = header_.dump();
  twice.back() = ',';
  twice += "\"" + std::string(kTable) + "\":" + header_.at(kTable).dump() + "}";
  expect_fault(with_header(twice, data_),
               at + "header: the key \"model.embed_tokens.weight\" appears twice\n");
  expect_fault(with_header("{\"a\": 12", "12345678"), at + "header: is not JSON (fault at byte");
  expect_fault(with_header("[]      ", data_), at + "the header is not a JSON object\n");
}

TEST_F(ModelFiles, TensorsThatDoNotBelongToTheConfiguration) {
  expect_fault(
      with_entry(kTable, "dtype", "I32"),
      "{}: model.safetensors: model.embed_tokens.weight has dtype I32; F32, BF16 or F16 is needed\n");
  expect_fault(
      with_entry(kTable, "dtype", "F4_UNKNOWN"),
      "{}: model.safetensors: model.embed_tokens.weight has dtype F4_UNKNOWN; F32, BF16 or F16 is needed\n");
  expect_fault(
      with_entry(kTable, "shape", {42, 97}),
      "{}: model.safetensors: model.embed_tokens.weight has shape [42, 97]; config.json needs [97, 42] = "
      "[vocab_size, hidden_size]\n");
  json renamed = header_;
  renamed["model.layers.0.input_norm.weight"] = renamed.at("model.layers.0.input_layernorm.weight");
  renamed.erase("model.layers.0.input_layernorm.weight");
  expect_fault(with_header(renamed),
               "{}: 1 tensor that config.json (llama, 3 layers) needs is missing: "
               "model.layers.0.input_layernorm.weight "
               "[42] = [hidden_size]\nhint: the folder has model.layers.0.input_norm.weight, which nothing "
               "reads; every "
               "weight must be there: nothing is initialised at random\n");
}

TEST_F(ModelFiles, WeightsThatAreNotFinite) {
  const std::string norm = "model.layers.1.input_layernorm.weight";
  const std::string at = "{}/model.safetensors: tensor " + norm + " holds ";
  expect_fault(
      with_value(norm, std::nanf("")),
      at +
          "nan (element 0); finite weights are needed\nhint: the checkpoint is broken: use an earlier one\n");
  expect_fault(with_value(norm, -std::numeric_limits<float>::infinity()),
               at + "-inf (element 0); finite weights are");
}

TEST_F(ModelFiles, FoldersThatAreNoModel) {
  const std::string here = std::filesystem::current_path().string();
  const auto expect = [&](const std::string& error) { expect_refused(score(), 4, "error: " + here + error); };
  const std::string config = bytes("model/config.json");
  json changed = json::parse(config);
  changed["model_type"] = "gpt2";
  file("model/config.json", changed.dump());
  expect("/model/config.json: model_type: \"gpt2\" is not built; built are llama, ");
  file("model/config.json", config.substr(0, config.size() / 2));
  expect("/model/config.json: is not JSON (fault at byte ");
  changed = json::parse(config);
  changed["attention_bias"] = true;
  file("model/config.json", changed.dump());
  expect("/model/config.json: attention_bias: true is not built; false is\nhint: ");
  std::filesystem::remove("model/config.json");
  expect("/model/config.json: no such file\nhint: a model folder in Hugging Face layout has a config.json\n");
  file("model/config.json", config);

  file("model/model.safetensors.index.json",
       R"({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}})");
  std::filesystem::remove(kFile);
  expect(
      "/model/model.safetensors.index.json: names files that are not there: "
      "model-00001-of-00002.safetensors\nhint: "
      "incomplete download or copy?\n");
  std::filesystem::remove("model/model.safetensors.index.json");
  file("model/pytorch_model.bin", "x");
  expect(
      "/model: holds neither model.safetensors nor model.safetensors.index.json; it has "
      "pytorch_model.bin\nhint: ");
  std::filesystem::remove_all("model");
  expect("/model");
}

}  // namespace
}  // namespace lathe
