#include "support/golden_tensors.h"

#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>

namespace lathe::test {
namespace {

std::vector<int64_t> integers_in(const std::string& text) {
  std::vector<int64_t> out;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) out.push_back(std::stoll(item));
  return out;
}

template <typename T>
void convert(const char* from, HostArray& to) {
  for (int64_t i = 0; i < to.size(); ++i) {
    T value{};
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    to[i] = static_cast<double>(value);
  }
}

}  // namespace

std::map<std::string, HostArray> read_golden_tensors(const std::string& path) {
  std::map<std::string, HostArray> out;
  std::ifstream file(path, std::ios::binary);
  std::stringstream buffer;
  buffer << file.rdbuf();
  const std::string bytes = buffer.str();
  EXPECT_GT(bytes.size(), 8U) << path;
  if (bytes.size() <= 8) return out;
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const std::string header = bytes.substr(8, header_size);
  const char* data = bytes.data() + 8 + header_size;
  const std::regex entry(
      R"re("([^"]+)":\{"dtype":"(F64|F32|I32)","shape":\[([0-9,]*)\],"data_offsets":\[([0-9]+),[0-9]+\]\})re");
  for (std::sregex_iterator at(header.begin(), header.end(), entry); at != std::sregex_iterator(); ++at) {
    Shape shape;
    for (const int64_t dim : integers_in((*at)[3])) shape.append(dim);
    HostArray array(shape);
    const char* from = data + std::stoll((*at)[4]);
    if ((*at)[2] == "F64") {
      convert<double>(from, array);
    } else if ((*at)[2] == "F32") {
      convert<float>(from, array);
    } else {
      convert<int32_t>(from, array);
    }
    out.emplace((*at)[1], std::move(array));
  }
  return out;
}

}  // namespace lathe::test
