// The kernels of a device: one pointer per operation and direction; see each operation's header for its contract.
// A device is complete or it does not start: a missing kernel is an error that names it, never a silent fallback.
#pragma once

#include "lathe/core/cpu.h"
#include "lathe/kernels/adamw.h"
#include "lathe/kernels/attention.h"
#include "lathe/kernels/causal_conv.h"
#include "lathe/kernels/delta_gates.h"
#include "lathe/kernels/elementwise.h"
#include "lathe/kernels/embedding.h"
#include "lathe/kernels/fused_log_prob.h"
#include "lathe/kernels/gated_delta_rule.h"
#include "lathe/kernels/gated_delta_rule_summary.h"
#include "lathe/kernels/gated_rmsnorm.h"
#include "lathe/kernels/grouped_matmul.h"
#include "lathe/kernels/log_prob.h"
#include "lathe/kernels/matmul.h"
#include "lathe/kernels/moe_dispatch.h"
#include "lathe/kernels/output_gate.h"
#include "lathe/kernels/qk_norm_rope.h"
#include "lathe/kernels/rmsnorm.h"
#include "lathe/kernels/router.h"
#include "lathe/kernels/swiglu.h"

namespace lathe {

// X(type, member) for every kernel.
#define LATHE_KERNELS(X)                                            \
  X(AdamW, adamw)                                                   \
  X(Add, add)                                                       \
  X(AddScaledRows, add_scaled_rows)                                 \
  X(AttentionBackward, attention_backward)                          \
  X(AttentionForward, attention_forward)                            \
  X(Cast, cast)                                                     \
  X(CausalConvBackward, causal_conv_backward)                       \
  X(CausalConvForward, causal_conv_forward)                         \
  X(CausalConvTail, causal_conv_tail)                               \
  X(CopyColumns, copy_columns)                                      \
  X(DeltaGatesBackward, delta_gates_backward)                       \
  X(DeltaGatesForward, delta_gates_forward)                         \
  X(EmbeddingBackward, embedding_backward)                          \
  X(EmbeddingForward, embedding_forward)                            \
  X(Fill, fill)                                                     \
  X(FusedLogProbBackward, fused_log_prob_backward)                  \
  X(FusedLogProbForward, fused_log_prob_forward)                    \
  X(GatedDeltaRuleAdjointSummary, gated_delta_rule_adjoint_summary) \
  X(GatedDeltaRuleBackward, gated_delta_rule_backward)              \
  X(GatedDeltaRuleFold, gated_delta_rule_fold)                      \
  X(GatedDeltaRuleForward, gated_delta_rule_forward)                \
  X(GatedDeltaRuleSummary, gated_delta_rule_summary)                \
  X(GatedRmsNormBackward, gated_rmsnorm_backward)                   \
  X(GatedRmsNormForward, gated_rmsnorm_forward)                     \
  X(GatherRows, gather_rows)                                        \
  X(GroupedMatmul, grouped_matmul)                                  \
  X(GroupedMatmulWeightGradient, grouped_matmul_weight_gradient)    \
  X(LogProbBackward, log_prob_backward)                             \
  X(LogProbForward, log_prob_forward)                               \
  X(Matmul, matmul)                                                 \
  X(MoeCombine, moe_combine)                                        \
  X(MoeCounts, moe_counts)                                          \
  X(MoeGather, moe_gather)                                          \
  X(MoeSort, moe_sort)                                              \
  X(MoeWanted, moe_wanted)                                          \
  X(OutputGateBackward, output_gate_backward)                       \
  X(OutputGateForward, output_gate_forward)                         \
  X(QkNormRopeBackward, qk_norm_rope_backward)                      \
  X(QkNormRopeForward, qk_norm_rope_forward)                        \
  X(RmsNormBackward, rmsnorm_backward)                              \
  X(RmsNormForward, rmsnorm_forward)                                \
  X(RouterBackward, router_backward)                                \
  X(RouterForward, router_forward)                                  \
  X(ScatterAddRows, scatter_add_rows)                               \
  X(SigmoidBackward, sigmoid_backward)                              \
  X(SigmoidForward, sigmoid_forward)                                \
  X(SumOfSquares, sum_of_squares)                                   \
  X(SwigluBackward, swiglu_backward)                                \
  X(SwigluForward, swiglu_forward)                                  \
  X(WeightedSwigluBackward, weighted_swiglu_backward)

struct KernelTable {
#define LATHE_DECLARE_KERNEL(type, member) type* member = nullptr;
  LATHE_KERNELS(LATHE_DECLARE_KERNEL)
#undef LATHE_DECLARE_KERNEL
};

// Throws an internal error that names every missing kernel.
void check_complete(const KernelTable& table, const char* device);

// Plain loops, f32 or f64 by the type of the arguments.
[[nodiscard]] KernelTable ref_kernel_table();
// Computes nothing: the trainer program runs through it to have its allocations counted. What kernels return to
// the host is in their headers.
[[nodiscard]] KernelTable plan_kernel_table();
// The fast path at an instruction set level; f32 (bf16 weights where a header says so).
[[nodiscard]] KernelTable cpu_kernel_table(Isa isa);

}  // namespace lathe
