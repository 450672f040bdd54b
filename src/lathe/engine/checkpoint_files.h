// Where a checkpoint keeps what is not the model, and what to do when it cannot be read.
#pragma once

#include <filesystem>
#include <string>

namespace lathe {

inline constexpr const char* kCheckpointRemedy =
    "remove this checkpoint's folder to go on from the one before it";

[[nodiscard]] inline std::string trainer_file(const std::string& checkpoint, const char* name) {
  return (std::filesystem::path(checkpoint) / "trainer" / name).string();
}

}  // namespace lathe
