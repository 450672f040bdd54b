// x = (I + L)^-1 for the strictly lower part L of l [n, n], dense f32; what l holds on and above its diagonal
// is not read. x [n, n] is overwritten and zero above its diagonal; scratch: n * n floats. One thread. Blocks
// of 16 by substitution, then neighbours are joined: [[A, 0], [B, D]]^-1 = [[A^-1, 0], [-D^-1 B A^-1, D^-1]].
// Powers of L are never formed: they grow far beyond the inverse when keys are alike.
#pragma once

#include <cstdint>

namespace lathe {

namespace avx2 {
void unit_lower_inverse(int64_t n, const float* l, float* x, float* scratch);
}
namespace avx512 {
void unit_lower_inverse(int64_t n, const float* l, float* x, float* scratch);
}

}  // namespace lathe
