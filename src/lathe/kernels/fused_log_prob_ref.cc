#include <vector>

#include "lathe/kernels/fused_log_prob.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/register.h"

// Token by token through the reference product and the reference log-softmax: one row of logits at a time.
namespace lathe::ref {
namespace {

KernelTable parts() {
  KernelTable table;
  register_matmul(table);
  register_log_prob(table);
  register_elementwise(table);
  return table;
}

struct Row {
  Row(DType type, int64_t vocab)
      : bytes(static_cast<size_t>(vocab * dtype_size(type))), view(bytes.data(), type, Shape{1, vocab}) {}
  std::vector<std::byte> bytes;
  View view;
};

void fused_log_prob_forward(Queue& queue, const FusedLogProbParams& params, ConstView hidden, ConstView table,
                            ConstView targets, ConstView temperature, View logp, View entropy, View stats,
                            View /*kept*/, View /*scratch*/) {
  const KernelTable kernels = parts();
  const Row row(hidden.dtype, table.dim(0));
  for (int64_t t = 0; t < hidden.dim(0); ++t) {
    kernels.matmul(queue, {.trans_b = true, .compute = params.compute}, hidden.rows(t, 1), table, row.view);
    kernels.log_prob_forward(queue, row.view, targets.rows(t, 1), temperature.rows(t, 1), logp.rows(t, 1),
                             entropy.rows(t, 1), stats.rows(t, 1));
  }
}

void fused_log_prob_backward(Queue& queue, const FusedLogProbParams& params, ConstView dlogp,
                             ConstView dentropy, ConstView hidden, ConstView table, ConstView targets,
                             ConstView temperature, ConstView entropy, ConstView stats, View /*kept*/,
                             View dhidden, View dtable, View /*scratch*/) {
  const KernelTable kernels = parts();
  const Row row(hidden.dtype, table.dim(0));
  if (!dtable.empty() && !params.accumulate) kernels.fill(queue, 0, dtable);
  for (int64_t t = 0; t < hidden.dim(0); ++t) {
    kernels.matmul(queue, {.trans_b = true, .compute = params.compute}, hidden.rows(t, 1), table, row.view);
    kernels.log_prob_backward(queue, dlogp.rows(t, 1), dentropy.empty() ? dentropy : dentropy.rows(t, 1),
                              row.view, targets.rows(t, 1), temperature.rows(t, 1), entropy.rows(t, 1),
                              stats.rows(t, 1), row.view);
    kernels.matmul(queue, {.compute = params.compute}, row.view, table, dhidden.rows(t, 1));
    if (dtable.empty()) continue;
    kernels.matmul(queue, {.trans_a = true, .accumulate = true, .compute = params.compute}, row.view,
                   hidden.rows(t, 1), dtable);
  }
}

}  // namespace

void register_fused_log_prob(KernelTable& table) {
  table.fused_log_prob_forward = fused_log_prob_forward;
  table.fused_log_prob_backward = fused_log_prob_backward;
}

}  // namespace lathe::ref
