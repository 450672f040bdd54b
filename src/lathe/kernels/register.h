// Each <operation>_ref.cc and <operation>_cpu.cc puts its kernels into the table with one function declared here.
#pragma once

namespace lathe {
struct KernelTable;

// X(operation): the stems of the files.
#define LATHE_OPERATIONS(X)   \
  X(adamw)                    \
  X(attention)                \
  X(causal_conv)              \
  X(delta_gates)              \
  X(elementwise)              \
  X(embedding)                \
  X(fused_log_prob)           \
  X(gated_delta_rule)         \
  X(gated_delta_rule_summary) \
  X(gated_rmsnorm)            \
  X(grouped_matmul)           \
  X(log_prob)                 \
  X(matmul)                   \
  X(moe_dispatch)             \
  X(output_gate)              \
  X(qk_norm_rope)             \
  X(rmsnorm)                  \
  X(router)                   \
  X(swiglu)

#define LATHE_DECLARE_REGISTER(operation) void register_##operation(KernelTable& table);
namespace ref {
LATHE_OPERATIONS(LATHE_DECLARE_REGISTER)
}
namespace avx2 {
LATHE_OPERATIONS(LATHE_DECLARE_REGISTER)
}
namespace avx512 {
LATHE_OPERATIONS(LATHE_DECLARE_REGISTER)
}
#undef LATHE_DECLARE_REGISTER

}  // namespace lathe
