#include "lathe/io/safetensors.h"

#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "lathe/core/dtype.h"
#include "lathe/core/error.h"

#include "support/temp_folder.h"

namespace lathe {
namespace {

using test::bytes_of_file;
using test::error_of;
using test::TempFolder;

std::string file_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

const std::string kDamagedHint = " | the file is damaged or was not made to the format: get it again";

// The message without the path of the temporary folder, and without the hint that most of them have.
std::string fault_of(const std::string& bytes) {
  const TempFolder folder;
  const std::string path = folder.write("model.safetensors", bytes);
  std::string fault = error_of(ErrorKind::kModel, [&] { const SafetensorsFile file(path); });
  if (const size_t at = fault.find(folder.path() + "/"); at != std::string::npos) {
    fault.erase(at, folder.path().size() + 1);
  }
  if (const size_t at = fault.rfind(kDamagedHint); at != std::string::npos) fault.erase(at);
  return fault;
}

std::string fault_of_header(const std::string& header, size_t data_bytes) {
  return fault_of(file_bytes(header, std::string(data_bytes, '\1')));
}

TEST(Safetensors, ReadsWhatItWrote) {
  const TempFolder folder;
  const std::vector<float> values = {1.5F, -2.0F, 3.25F, 0.0F, 1e-3F, 7.0F};
  const auto writer = [&](const std::string& dtype) {
    return [&values, dtype](std::byte* to) { weights_from_float(dtype, values.data(), 6, to); };
  };
  const std::vector<TensorToWrite> tensors = {{"b", "F32", {2, 3}, writer("F32")},
                                              {"a \"quoted\"", "BF16", {6}, writer("BF16")},
                                              {"empty", "F16", {0, 4}, nullptr},
                                              {"c", "F16", {3, 1, 2}, writer("F16")}};
  write_safetensors(folder / "x.safetensors", tensors, {{"format", "pt"}, {"note", "\xc3\xa4"}});
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("note"), "\xc3\xa4");
  EXPECT_EQ(file.names_in_file_order(), (std::vector<std::string>{"b", "a \"quoted\"", "empty", "c"}));
  EXPECT_EQ(file.tensors().at("b").begin % 8, 0U);
  for (const auto& tensor : tensors) {
    const TensorInfo& info = file.tensors().at(tensor.name);
    EXPECT_EQ(info.dtype, tensor.dtype);
    EXPECT_EQ(info.shape, tensor.shape);
    std::vector<float> back(static_cast<size_t>(info.elements()));
    weights_to_float(info.dtype, file.bytes(info), info.elements(), back.data());
    for (size_t i = 0; i < back.size(); ++i) EXPECT_NEAR(back[i], values[i], 4e-3) << tensor.name;
  }
}

TEST(Safetensors, ReadsMisalignedData) {
  const TempFolder folder;
  const std::vector<double> truth = {1.0, -2.5};
  std::string data = "x";
  for (const double value : truth) {
    const auto single = static_cast<float>(value);
    data.append(std::string(reinterpret_cast<const char*>(&single), 4));  // NOLINT
  }
  const std::string header =
      R"({"pad":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"v":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  const SafetensorsFile file(folder.write("odd.safetensors", file_bytes(header, data)));
  std::vector<float> back(2);
  weights_to_float("F32", file.bytes(file.tensors().at("v")), 2, back.data());
  EXPECT_EQ(back, (std::vector<float>{1.0F, -2.5F}));
}

TEST(Safetensors, SaysWhatIsWrongWithTheFile) {
  EXPECT_EQ(fault_of(""),
            "model.safetensors: 0 bytes are too few for a safetensors file | incomplete download or copy?");
  EXPECT_EQ(fault_of("1234567"),
            "model.safetensors: 7 bytes are too few for a safetensors file | incomplete download or copy?");
  EXPECT_EQ(fault_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 10\n"),
            "model.safetensors: not a safetensors file (64 bytes) | this is a git-lfs pointer, not the file "
            "itself: "
            "fetch it with `git lfs pull`");
  EXPECT_NE(fault_of("<!DOCTYPE html><html></html>").find("web page"), std::string::npos);
  EXPECT_NE(fault_of("\x1f\x8b\x08\x01\x01\x01\x01\x01\x01").find("gzip"), std::string::npos);
  EXPECT_NE(fault_of("PK\x03\x04 archive").find("PyTorch"), std::string::npos);
  std::string huge(16, '\0');
  huge[7] = '\x80';  // 2^63
  EXPECT_EQ(fault_of(huge),
            "model.safetensors: the header should be 9223372036854775808 bytes long but 8 bytes follow its "
            "length | "
            "incomplete download or copy?");
  EXPECT_NE(fault_of(file_bytes("[]", "")).find("header is not a JSON object"), std::string::npos);
  EXPECT_NE(fault_of(file_bytes("{\"a\":", "")).find("is not JSON (fault at byte"), std::string::npos);
  EXPECT_NE(fault_of(file_bytes("{\"\xff\":1}", "")).find("is not JSON"), std::string::npos);
  EXPECT_NE(fault_of(file_bytes("{\"a\":[[[[[[[[[1]]]]]]]]]}", "")).find("nested more than 8"),
            std::string::npos);
}

TEST(Safetensors, SaysHowManyBytesAreMissing) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[301056],"data_offsets":[0,1204224]}})";
  EXPECT_EQ(fault_of_header(header, 81920),
            "model.safetensors: header says 1204224 bytes of data but the file has 81920 | incomplete "
            "download or copy?");
  EXPECT_EQ(fault_of_header(header, 1204223),
            "model.safetensors: header says 1204224 bytes of data but the file has 1204223 | "
            "incomplete download or copy?");
  EXPECT_EQ(fault_of_header(header, 1204225),
            "model.safetensors: header says 1204224 bytes of data but the file has 1204225 | "
            "bytes follow the last tensor: a damaged copy?");
  EXPECT_EQ(fault_of_header(header, 1204224), "no error");
}

TEST(Safetensors, FaultsOfTheHeaderSayWhatToDo) {
  const TempFolder folder;
  const std::string path =
      folder.write("m", file_bytes(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234"));
  EXPECT_TRUE(error_of(ErrorKind::kModel, [&] { const SafetensorsFile file(path); }).ends_with(kDamagedHint));
}

TEST(Safetensors, RefusesLyingEntries) {
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return fault_of_header(
        R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", 8);
  };
  EXPECT_EQ(entry("F32", "[2]", "[0,8]"), "no error");
  EXPECT_EQ(
      entry("F32", "[1000,1000]", "[0,4]"),
      "model.safetensors: tensor w: F32 [1000, 1000] takes 4000000 bytes, but data_offsets [0,4] give 4");
  EXPECT_EQ(entry("F32", "[2]", "[8,0]"), "model.safetensors: tensor w: data begin at 8 after they end at 0");
  EXPECT_EQ(entry("F32", "[-2]", "[0,8]"),
            "model.safetensors: tensor w: extents must be whole numbers of at least 0, not -2");
  EXPECT_EQ(entry("F32", "[2]", "[-8,0]"),
            "model.safetensors: tensor w: data_offsets must be whole numbers of at least 0, not -8");
  EXPECT_EQ(entry("F32", "[2.0]", "[0,8]"),
            "model.safetensors: tensor w: extents must be whole numbers of at least 0, not 2.0");
  EXPECT_EQ(entry("F32", "[4294967296,4294967296]", "[0,8]"),
            "model.safetensors: tensor w: shape [4294967296,4294967296] overflows 64 bits");
  EXPECT_EQ(entry("F64", "[2305843009213693952]", "[0,8]"),
            "model.safetensors: tensor w: shape [2305843009213693952] overflows 64 bits");
  EXPECT_EQ(
      entry("F32", "[18446744073709551615]", "[0,8]"),
      "model.safetensors: tensor w: extents must be whole numbers of at least 0, not 18446744073709551615");
  EXPECT_EQ(entry("F32", "2", "[0,8]"), "model.safetensors: tensor w: shape must be a list, not 2");
  EXPECT_EQ(entry("F32", "[2]", "[0]"),
            "model.safetensors: tensor w: data_offsets must be two numbers, not [0]");
  EXPECT_EQ(entry("F4_NEW", "[16]", "[0,8]"), "no error");  // unknown: only the place is checked
  EXPECT_EQ(fault_of_header(R"({"w":{"dtype":"F32","shape":[2]}})", 8),
            "model.safetensors: tensor w: needs dtype, shape and data_offsets");
  EXPECT_EQ(fault_of_header(R"({"__metadata__":{"a":1}})", 0),
            "model.safetensors: __metadata__ a must be a string, not 1");
}

TEST(Safetensors, RefusesDuplicatesOverlapsAndHoles) {
  const std::string w = R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_EQ(fault_of_header("{" + w + "," + w + "}", 4),
            "model.safetensors: header: the key \"w\" appears twice | is the file complete? mend it, or get "
            "it again");
  EXPECT_EQ(fault_of_header("{" + w + R"(,"v":{"dtype":"F16","shape":[2],"data_offsets":[2,6]}})", 6),
            "model.safetensors: tensors w and v overlap");
  EXPECT_EQ(fault_of_header("{" + w + R"(,"v":{"dtype":"F16","shape":[2],"data_offsets":[6,10]}})", 10),
            "model.safetensors: 2 bytes before tensor v belong to no tensor");
}

TEST(Safetensors, LeavesNothingHalfWritten) {
  const TempFolder folder;
  const std::vector<TensorToWrite> tensors = {
      {"w", "F32", {4}, [](std::byte*) { throw std::runtime_error("no values"); }}};
  EXPECT_THROW(write_safetensors(folder / "m.safetensors", tensors, {}), std::runtime_error);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const std::string missing = folder / "none/m.safetensors";
  EXPECT_NE(
      error_of(ErrorKind::kConfig, [&] { write_safetensors(missing, {}, {}); }).find("cannot be created"),
      std::string::npos);
}

TEST(Safetensors, CopiesBytesOfAnyDtype) {
  const TempFolder folder;
  const std::string data = "\x01\x02\x03\x04\x05";
  const auto* bytes = static_cast<const std::byte*>(static_cast<const void*>(data.data()));
  write_safetensors(folder / "m.safetensors", {{"q", "F5_WEIRD", {8}, nullptr, bytes, 5}}, {});
  const SafetensorsFile file(folder / "m.safetensors");
  EXPECT_EQ(file.tensors().at("q").dtype, "F5_WEIRD");
  EXPECT_TRUE(bytes_of_file(folder / "m.safetensors").ends_with(data));
}

}  // namespace
}  // namespace lathe
