// Reads F64, F32 and I32 tensors of a fixture in safetensors format that this repository holds. Trusts the
// file: the reader of the product is lathe/io/safetensors.h.
#pragma once

#include <map>
#include <string>

#include "support/kernel_test.h"

namespace lathe::test {

// By name. Fails the test and returns nothing if the file cannot be read.
[[nodiscard]] std::map<std::string, HostArray> read_golden_tensors(const std::string& path);

}  // namespace lathe::test
