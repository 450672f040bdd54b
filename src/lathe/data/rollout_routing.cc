#include <limits>

#include <fmt/format.h>

#include "lathe/data/base64.h"
#include "lathe/data/rollout_fields.h"

namespace lathe {

void RolloutFields::read_routed_experts() {
  const Found* field = present("routed_experts");
  if (field == nullptr) return;
  const std::string expected =
      "{\"data\": base64 of little-endian int16, \"shape\": [tokens, MoE layers, top_k]}";
  if (field->value.kind() != JsonKind::kObject) fault(field->name, field->value.text(), expected);
  std::map<std::string_view, JsonView> parts;
  for (size_t i = 0; i < field->value.size(); ++i)
    parts.emplace(field->value.name(i), field->value.member(i));
  if (!parts.contains("data") || parts["data"].kind() != JsonKind::kString) {
    fault(field->name + ".data", parts.contains("data") ? parts["data"].text() : "missing",
          "a base64 string");
  }
  if (parts.contains("dtype") &&
      (parts["dtype"].kind() != JsonKind::kString || parts["dtype"].string() != "int16")) {
    fault(field->name + ".dtype", parts["dtype"].text(), "\"int16\"");
  }
  if (!parts.contains("shape") || parts["shape"].kind() != JsonKind::kArray || parts["shape"].size() != 3) {
    fault(field->name + ".shape", parts.contains("shape") ? parts["shape"].text() : "missing",
          "[tokens, MoE layers, top_k]");
  }
  int64_t shape[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    const auto size = parts["shape"].at(i).integer();
    if (!size || *size < 1 || *size > std::numeric_limits<int32_t>::max()) {
      fault(fmt::format("{}.shape[{}]", field->name, i), parts["shape"].at(i).text(), "an integer >= 1");
    }
    shape[i] = *size;
  }
  if (shape[0] != t_.tokens() && shape[0] != t_.tokens() - 1) {
    fault(field->name + ".shape[0]", fmt::format("{}", shape[0]),
          fmt::format("{} tokens, or {} without the last", t_.tokens(), t_.tokens() - 1));
  }
  const auto bytes = decode_base64(parts["data"].string());
  if (!bytes) fault(field->name + ".data", parts["data"].text(), "base64 text");
  // Divided rather than multiplied: the product of three sizes may not fit.
  const auto count = static_cast<int64_t>(bytes->size() / 2);
  const bool fits = bytes->size() % 2 == 0 && count % shape[0] == 0 && count / shape[0] % shape[1] == 0 &&
                    count / shape[0] / shape[1] == shape[2];
  if (!fits) {
    fault(field->name + ".data", fmt::format("{} bytes", bytes->size()),
          fmt::format("2 x {} x {} x {}, for the shape", shape[0], shape[1], shape[2]));
  }
  RoutedExperts& routed = t_.routed_experts.emplace();
  routed.tokens = shape[0];
  routed.layers = shape[1];
  routed.top_k = shape[2];
  routed.data.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < routed.data.size(); ++i) {
    routed.data[i] =
        static_cast<int16_t>(static_cast<uint16_t>((*bytes)[2 * i] | ((*bytes)[2 * i + 1] << 8U)));
  }
}

}  // namespace lathe
