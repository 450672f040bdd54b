// Base64 with the standard alphabet; padding may be left out. Nothing for any other text.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lathe {

[[nodiscard]] std::optional<std::vector<uint8_t>> decode_base64(std::string_view text);

}  // namespace lathe
