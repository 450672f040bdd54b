// A communicator that passes everything on and calls a function after each reduction of host values: tests let things
// happen between two exchanges of a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "lathe/mesh/communicator.h"

namespace lathe::test {

enum class Reduction : uint8_t { kSum, kMax };
using AfterReduction =
    std::function<void(const Exchange& exchange, Reduction kind, std::span<const double> result)>;
[[nodiscard]] std::unique_ptr<Communicator> hook_reductions(std::unique_ptr<Communicator> inner,
                                                            AfterReduction after);

}  // namespace lathe::test
