// Descriptions of all options, generated from the option table.
#pragma once

#include <string>

namespace lathe {

[[nodiscard]] std::string config_reference();  // docs/config.md
[[nodiscard]] std::string config_key_list();   // the end of `lathe train --help`: a line per key

}  // namespace lathe
