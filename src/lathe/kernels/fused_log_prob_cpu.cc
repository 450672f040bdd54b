#include "lathe/kernels/access.h"
#include "lathe/kernels/fused_log_prob.h"
#include "lathe/kernels/kernel_table.h"
#include "lathe/kernels/matmul_tile.h"
#include "lathe/kernels/register.h"
#include "lathe/kernels/simd_blocks.h"
#include "lathe/kernels/softmax_row.h"

namespace lathe::LATHE_ISA_NAMESPACE {
namespace {

// A tile of logits lies at the end of a thread's workspace, behind what a product uses of it. Its rows are a line longer
// than the words, so that they do not all fall on the same lines of a cache.
constexpr int64_t kTileStride = kHeadTileVocab + 16;
constexpr int64_t kTileBytes = kHeadTileTokens * kTileStride * static_cast<int64_t>(sizeof(float));
constexpr int64_t kTileOffset = Queue::kThreadWorkspaceBytes - kTileBytes;
constexpr int64_t kProductRows = 512;      // of a product that converts its operands
constexpr int64_t kProductColumns = 1024;  // of a hidden state at once

struct Problem {
  int64_t tokens = 0;
  int64_t dim = 0;
  int64_t vocab = 0;
  Operand hidden;  // f32, or rounded to bf16 where products are of bf16 values
  Operand table;
  const int32_t* targets = nullptr;
  const float* temperature = nullptr;
  TileMath math = TileMath::kF32;
  float* kept = nullptr;

  [[gnu::always_inline, nodiscard]] inline bool narrow() const { return math != TileMath::kF32; }
  [[gnu::always_inline, nodiscard]] inline int64_t blocks() const {
    return ceil_div(tokens, kHeadTileTokens);
  }
};

// Vocabulary [begin, end) of a group: whole tiles, as evenly as they go.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};
LATHE_INLINE Range group_range(int64_t vocab, int64_t group) {
  const int64_t tiles = ceil_div(vocab, kHeadTileVocab);
  return {min_of(vocab, tiles * group / kHeadGroups * kHeadTileVocab),
          min_of(vocab, tiles * (group + 1) / kHeadGroups * kHeadTileVocab)};
}

// The tokens of a block and the words of a tile, and where its logits are.
struct Tile {
  int64_t token = 0;
  int64_t tokens = 0;
  int64_t word = 0;
  int64_t words = 0;
  float* logits = nullptr;  // [tokens, words], kTileStride apart
  float* kept = nullptr;    // [tokens, words], or absent
};

LATHE_INLINE Tile tile_at(const Problem& p, std::byte* workspace, int64_t token, int64_t word, int64_t end) {
  Tile tile{token,
            min_of(kHeadTileTokens, p.tokens - token),
            word,
            min_of(kHeadTileVocab, end - word),
            reinterpret_cast<float*>(workspace + kTileOffset),
            nullptr};
  // Kept logits: block after block, in it tile after tile.
  if (p.kept != nullptr) tile.kept = p.kept + token * p.vocab + tile.tokens * word;
  return tile;
}

// What is in a tile's place after make_cotangents: f32, or bf16 from the same address on.
LATHE_INLINE Operand cotangents_of(const Problem& p, const Tile& t, bool trans) {
  return {reinterpret_cast<const std::byte*>(t.logits), p.narrow(), kTileStride, trans};
}

// logits = hidden table^T
LATHE_INLINE void make_logits(const Problem& p, std::byte* workspace, const Tile& t) {
  Operand words = p.table.from(t.word, 0);
  words.trans = true;
  multiply_tile(workspace, p.math, t.tokens, t.words, p.dim, p.hidden.from(t.token, 0), words, false,
                t.logits, kTileStride);
}

// Of one token over the words of a group: largest logit, sum e^(z - m), sum e^(z - m) (z - m) with m = z of the largest if
// that is finite, else 0; and 0 or NaN for whether all logits are finite.
struct Partial {
  float top;
  float exps;
  float weighted;
  float zero_or_nan;
};
static_assert(sizeof(Partial) == 4 * sizeof(float));

LATHE_INLINE void copy(const float* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

LATHE_INLINE float finite_or_zero(float x) {
  return x - x == 0.0F ? x : 0.0F;
}

struct Running {
  float top = -__builtin_inff();
  float m = 0;
  double exps = 0;
  double weighted = 0;
};
// The sums of two parts over their common maximum. A part without weight leaves the other as it is.
LATHE_INLINE void merge(Running& a, float top, double exps, double weighted, float inverse_tau) {
  const float both = top > a.top ? top : a.top;
  const float m = finite_or_zero(both * inverse_tau);
  const auto onto = [m](float from, double& sum, double& weighted_sum) {
    if (sum == 0.0 || from == m) return;
    const double d = static_cast<double>(from) - static_cast<double>(m);
    const double factor = __builtin_exp(d);
    weighted_sum = factor == 0.0 ? 0.0 : factor * (weighted_sum + d * sum);
    sum *= factor;
  };
  onto(a.m, a.exps, a.weighted);
  onto(finite_or_zero(top * inverse_tau), exps, weighted);
  a.top = both;
  a.m = m;
  a.exps += exps;
  a.weighted += weighted;
}

LATHE_INLINE void group_forward(const Problem& p, std::byte* workspace, int64_t token, int64_t group,
                                float* logp, Partial* partials) {
  const Range range = group_range(p.vocab, group);
  const int64_t tokens = min_of(kHeadTileTokens, p.tokens - token);
  for (int64_t i = 0; i < tokens; ++i) {
    partials[(token + i) * kHeadGroups + group] = {-__builtin_inff(), 0, 0, 0};
  }
  for (int64_t word = range.begin; word < range.end; word += kHeadTileVocab) {
    const Tile tile = tile_at(p, workspace, token, word, range.end);
    make_logits(p, workspace, tile);
    for (int64_t i = 0; i < tile.tokens; ++i) {
      const float* const x = tile.logits + i * kTileStride;
      const int64_t t = token + i;
      const float inverse_tau = inverse_temperature(p.temperature[t]);
      const RowMaximum top = maximum(x, tile.words);
      const RowSums sums = part_sums(x, tile.words, inverse_tau, finite_or_zero(top.value * inverse_tau));
      // A product that wrote there would pass over far memory several times; this passes once.
      if (tile.kept != nullptr) copy(x, tile.words, tile.kept + i * tile.words);
      Partial& partial = partials[t * kHeadGroups + group];
      Running running{partial.top, finite_or_zero(partial.top * inverse_tau),
                      static_cast<double>(partial.exps), static_cast<double>(partial.weighted)};
      merge(running, top.value, sums.exps, sums.weighted, inverse_tau);
      partial = {running.top, static_cast<float>(running.exps), static_cast<float>(running.weighted),
                 top.finite ? partial.zero_or_nan : __builtin_nanf("")};
      const int64_t target = p.targets[t] - tile.word;
      if (target >= 0 && target < tile.words) logp[t] = x[target];  // the logit, until the sums are there
    }
  }
}

LATHE_INLINE void finish_token(const Partial* groups, float tau, float* logp, float* entropy, float* stats) {
  const float inverse_tau = inverse_temperature(tau);
  Running all;
  float zero_or_nan = 0;
  for (int64_t g = 0; g < kHeadGroups; ++g) {
    merge(all, groups[g].top, static_cast<double>(groups[g].exps), static_cast<double>(groups[g].weighted),
          inverse_tau);
    zero_or_nan += groups[g].zero_or_nan;
  }
  const double log_sum = __builtin_log(all.exps);
  const double ent = log_sum - all.weighted / all.exps;
  *logp = static_cast<float>(static_cast<double>(__builtin_fmaf(*logp, inverse_tau, -all.m)) - log_sum);
  *entropy = zero_or_nan == 0.0F ? static_cast<float>(ent < 0 ? 0 : ent) : __builtin_nanf("");
  stats[0] = all.m;
  stats[1] = static_cast<float>(all.exps);
}

LATHE_INLINE void convert(const float* from, int64_t count, BFloat16* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
}

// Rounded once, into the end of scratch, instead of for every tile.
LATHE_INLINE Operand hidden_operand(Queue& queue, ConstView hidden, bool narrow, View scratch) {
  const float* const wide = elements<float>(hidden);
  if (!narrow) return {hidden.data, false, hidden.dim(1), false};
  const int64_t before = fused_log_prob_scratch(hidden.dim(0), hidden.dim(1), DType::kF32);
  auto* const rounded = reinterpret_cast<BFloat16*>(elements<float>(scratch) + before);
  for_blocks(queue, hidden.size(), kElementBlock,
             [&](int64_t begin, int64_t end) { convert(wide + begin, end - begin, rounded + begin); });
  return {reinterpret_cast<const std::byte*>(rounded), true, hidden.dim(1), false};
}

LATHE_INLINE Problem problem_of(Queue& queue, const FusedLogProbParams& params, ConstView hidden,
                                ConstView table, ConstView targets, ConstView temperature, View kept,
                                View scratch) {
  Problem p;
  p.tokens = hidden.dim(0);
  p.dim = hidden.dim(1);
  p.vocab = table.dim(0);
  check_shape("fused_log_prob", "table", table, {p.vocab, p.dim});
  check_shape("fused_log_prob", "targets", targets, {p.tokens});
  check_shape("fused_log_prob", "temperature", temperature, {p.tokens});
  LATHE_CHECK(scratch.size() >= fused_log_prob_scratch(p.tokens, p.dim, params.compute), "scratch of {}",
              scratch.size());
  LATHE_CHECK(table.dtype == DType::kF32 || table.dtype == DType::kBF16, "table of {}",
              dtype_name(table.dtype));
  p.table = {table.data, table.dtype == DType::kBF16, p.dim, false};
  p.targets = elements<int32_t>(targets);
  p.temperature = elements<float>(temperature);
  p.math = tile_math(params.compute);
  p.hidden = hidden_operand(queue, hidden, p.narrow(), scratch);
  p.kept = optional_elements<float>(kept);
  for (int64_t t = 0; t < p.tokens; ++t) {
    LATHE_CHECK(p.targets[t] >= 0 && p.targets[t] < p.vocab, "target {} of {}", p.targets[t], p.vocab);
  }
  return p;
}

void fused_log_prob_forward(Queue& queue, const FusedLogProbParams& params, ConstView hidden, ConstView table,
                            ConstView targets, ConstView temperature, View logp, View entropy, View stats,
                            View kept, View scratch) {
  const Problem p = problem_of(queue, params, hidden, table, targets, temperature, kept, scratch);
  check_shape("fused_log_prob", "logp", logp, {p.tokens});
  check_shape("fused_log_prob", "entropy", entropy, {p.tokens});
  check_shape("fused_log_prob", "stats", stats, {p.tokens, 2});
  auto* const partials = reinterpret_cast<Partial*>(elements<float>(scratch));
  float* const lp = elements<float>(logp);
  float* const h = elements<float>(entropy);
  float* const saved = elements<float>(stats);
  parallel_for(queue, p.blocks() * kHeadGroups, [&](int64_t index, int thread) {
    group_forward(p, queue.thread_workspace(thread), index / kHeadGroups * kHeadTileTokens,
                  index % kHeadGroups, lp, partials);
  });
  for_blocks(queue, p.tokens, 256, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      finish_token(partials + t * kHeadGroups, p.temperature[t], lp + t, h + t, saved + 2 * t);
    }
  });
}

struct Cotangents {
  const float* logp = nullptr;
  const float* entropy = nullptr;  // or absent
  const float* entropy_value = nullptr;
  const float* stats = nullptr;
};

LATHE_INLINE void make_cotangents(const Problem& p, const Cotangents& c, const Tile& tile) {
  float row_of_narrow[kHeadTileVocab];
  // Half as long as the rows of logits, so that none is written over before it is read.
  auto* const narrow = reinterpret_cast<BFloat16*>(tile.logits);
  for (int64_t i = 0; i < tile.tokens; ++i) {
    const int64_t t = tile.token + i;
    float* const logits = tile.logits + i * kTileStride;
    const float* const x = tile.kept == nullptr ? logits : tile.kept + i * tile.words;
    float* const dx = p.narrow() ? row_of_narrow : logits;
    const float inverse_tau = inverse_temperature(p.temperature[t]);
    const RowCotangent row{.inverse_tau = inverse_tau,
                           .m = c.stats[2 * t],
                           .sum = c.stats[2 * t + 1],
                           .g = c.logp[t] * inverse_tau,
                           .e = c.entropy == nullptr ? 0.0F : c.entropy[t] * inverse_tau,
                           .entropy = c.entropy == nullptr ? 0.0F : c.entropy_value[t]};
    cotangent(row, x, tile.words, dx);
    const int64_t target = p.targets[t] - tile.word;
    const bool counts = row.g != 0.0F || row.e != 0.0F;
    if (counts && target >= 0 && target < tile.words) dx[target] += row.g;
    if (p.narrow()) convert(dx, tile.words, narrow + i * kTileStride);
  }
}

// Both products of a group for one block of tokens: rows of dtable that no other group touches, and the group's own part of
// dhidden.
LATHE_INLINE void group_backward(const Problem& p, const Cotangents& c, std::byte* workspace, int64_t token,
                                 int64_t group, float* dtable, bool accumulate, float* part) {
  const Range range = group_range(p.vocab, group);
  const int64_t tokens = min_of(kHeadTileTokens, p.tokens - token);
  const int64_t most_rows = p.math == TileMath::kBf16Widened ? kProductRows : kHeadTileVocab;
  if (range.begin == range.end) {
    for (int64_t i = 0; i < tokens * p.dim; ++i) part[i] = 0.0F;
  }
  for (int64_t word = range.begin; word < range.end; word += kHeadTileVocab) {
    const Tile tile = tile_at(p, workspace, token, word, range.end);
    if (p.kept == nullptr) make_logits(p, workspace, tile);
    make_cotangents(p, c, tile);
    for (int64_t column = 0; column < p.dim; column += kProductColumns) {
      const int64_t columns = min_of(kProductColumns, p.dim - column);
      multiply_tile(workspace, p.math, tile.tokens, columns, tile.words, cotangents_of(p, tile, false),
                    p.table.from(tile.word, column), word > range.begin, part + column, p.dim);
      if (dtable == nullptr) continue;
      for (int64_t row = 0; row < tile.words; row += most_rows) {
        multiply_tile(workspace, p.math, min_of(most_rows, tile.words - row), columns, tile.tokens,
                      cotangents_of(p, tile, true).from(row, 0), p.hidden.from(token, column), accumulate,
                      dtable + (tile.word + row) * p.dim + column, p.dim);
      }
    }
  }
}

void fused_log_prob_backward(Queue& queue, const FusedLogProbParams& params, ConstView dlogp,
                             ConstView dentropy, ConstView hidden, ConstView table, ConstView targets,
                             ConstView temperature, ConstView entropy, ConstView stats, View kept,
                             View dhidden, View dtable, View scratch) {
  const Problem p = problem_of(queue, params, hidden, table, targets, temperature, kept, scratch);
  check_shape("fused_log_prob", "dlogp", dlogp, {p.tokens});
  check_shape("fused_log_prob", "dhidden", dhidden, hidden.shape);
  Cotangents c;
  c.logp = elements<float>(dlogp);
  c.entropy = optional_elements<float>(dentropy);
  c.entropy_value = c.entropy == nullptr ? nullptr : elements<float>(entropy);
  c.stats = elements<float>(stats);
  float* const dh = elements<float>(dhidden);
  float* const dw = optional_elements<float>(dtable);
  float* const parts = elements<float>(scratch);
  if (dw != nullptr && !params.accumulate && p.tokens == 0) {
    for_blocks(queue, p.vocab * p.dim, kElementBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) dw[i] = 0.0F;
    });
  }
  for (int64_t token = 0; token < p.tokens; token += kHeadTileTokens) {
    const int64_t tokens = min_of(kHeadTileTokens, p.tokens - token);
    const int64_t stride = tokens * p.dim;
    const bool accumulate = params.accumulate || token > 0;
    parallel_for(queue, kHeadGroups, [&](int64_t group, int thread) {
      group_backward(p, c, queue.thread_workspace(thread), token, group, dw, accumulate,
                     parts + group * stride);
    });
    float* const out = dh + token * p.dim;
    for_blocks(queue, stride, kElementBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = parts[i];
      for (int64_t g = 1; g < kHeadGroups; ++g) {
        const float* const from = parts + g * stride;
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) out[i] += from[i];
      }
    });
  }
}

}  // namespace

void register_fused_log_prob(KernelTable& table) {
  table.fused_log_prob_forward = fused_log_prob_forward;
  table.fused_log_prob_backward = fused_log_prob_backward;
}

}  // namespace lathe::LATHE_ISA_NAMESPACE
