// A case of the gated delta rule for tests: its inputs on the host, and runs of it on a device.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lathe/kernels/gated_delta_rule.h"

#include "support/kernel_test.h"

namespace lathe::test {

struct DeltaCase {
  GatedDeltaRuleParams params;
  std::vector<int32_t> segments;
  HostArray q, k, v, beta, g;
  HostArray initial_state;  // empty shape: none
  std::vector<int32_t> initial_segment;
  HostArray d_o;
  HostArray d_final_state;  // empty shape: none
};

// Outputs by the names of the header: o, final_state, chunk_states; dq, dk, dv, dbeta, dg, d_initial_state.
using Named = std::map<std::string, HostArray>;

// How fast states forget and how alike keys are. Values are multiples of f32 steps, so f32 and f64 see the
// same inputs.
struct DeltaKind {
  double slowest = -3.0;  // g = -exp(uniform(slowest, fastest))
  double fastest = 0.5;
  double alike = 0.0;       // correlation of keys
  double beta_shift = 0.0;  // beta = sigmoid(normal + shift)
};
// segments: of all rows. NaN at padding tokens in every input.
[[nodiscard]] DeltaCase random_delta_case(const GatedDeltaRuleParams& params, std::vector<int32_t> segments,
                                          uint64_t seed, const DeltaKind& kind = {});
// Adds a carried state; the segment of row r is the one of its first token that is not padding.
void carry_state(DeltaCase& c, uint64_t seed);

[[nodiscard]] Named run_delta_forward(const Device& device, const DeltaCase& c);
// Forward, then backward with c.d_o and c.d_final_state.
[[nodiscard]] Named run_delta(const Device& device, const DeltaCase& c);

// Tokens [begin, end) of a case of one row, without carried state and its gradient.
[[nodiscard]] DeltaCase slice_tokens(const DeltaCase& c, int64_t begin, int64_t end);
// Rows [begin, end) of the first extent.
[[nodiscard]] HostArray slice_rows(const HostArray& array, int64_t begin, int64_t end);

}  // namespace lathe::test
