// The fast path against the reference: every instruction set at hand, and the same bits for one and two
// threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/kernel_test.h"

namespace lathe::test {

// Runs a kernel on a device and returns its outputs. The reference runs in f64.
using KernelRun = std::function<std::vector<HostArray>(const Device& device)>;

inline void expect_parity(const std::string& label, const KernelRun& run, double tolerance = 2e-6) {
  const std::vector<HostArray> expected = run(make_ref_device());
  for (const Isa isa : isas_at_hand()) {
    const std::vector<HostArray> one = run(make_cpu_device(isa, 1));
    const std::vector<HostArray> two = run(make_cpu_device(isa, 2));
    ASSERT_EQ(one.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string what = label + " " + isa_name(isa) + ", output " + std::to_string(i);
      expect_near(one[i], expected[i], tolerance, what);
      expect_same(two[i], one[i], what + ", two threads");
    }
  }
}

}  // namespace lathe::test
