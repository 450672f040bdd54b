#include <algorithm>
#include <array>
#include <cmath>

#include "lathe/bench/measure.h"
#include "lathe/bench/part.h"
#include "lathe/core/rng.h"
#include "lathe/head/known_cotangent.h"

namespace lathe {
namespace {

Tensor integers(const Device& device, const std::vector<int32_t>& values, const std::string& name) {
  Tensor out = device.indices(Shape{static_cast<int64_t>(values.size())}, name);
  device.memory->copy_from_host(out, values.data());
  return out;
}

int64_t scored_of(const HeadSizes& s) {
  const auto wanted = static_cast<int64_t>(std::llround(s.scored * static_cast<double>(s.tokens)));
  return std::clamp<int64_t>(wanted, 1, s.tokens);
}

// Every scored position, spread over the row.
Tensor positions(const Device& device, const HeadSizes& s) {
  if (device.options.name == "plan") return device.indices(Shape{scored_of(s)}, "positions");
  std::vector<int32_t> values(static_cast<size_t>(scored_of(s)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(static_cast<int64_t>(i) * s.tokens / scored_of(s));
  }
  return integers(device, values, "positions");
}

Tensor some_targets(const Device& device, const HeadSizes& s) {
  if (device.options.name == "plan") return device.indices(Shape{scored_of(s)}, "targets");
  const CounterRng rng(5, stream_of("targets"));
  std::vector<int32_t> values(static_cast<size_t>(scored_of(s)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(rng.uniform(i) * static_cast<double>(s.vocab));
  }
  return integers(device, values, "targets");
}

class HeadPart final : public Part {
 public:
  HeadPart(Device& device, const HeadSizes& s, DType dtype)
      : device_(device),
        sizes_(s),
        params_{.mode = s.mode, .chunk = s.chunk, .compute = dtype},
        n_(scored_of(s)),
        hidden_(random_tensor(device, {s.tokens, s.dim}, "hidden", 0.5)),
        table_(random_tensor(device, {s.vocab, s.dim}, "table", 1 / std::sqrt(static_cast<double>(s.dim)))),
        positions_(positions(device, s)),
        targets_(some_targets(device, s)),
        temperature_(uniform_tensor(device, {n_}, "temperature", 0.5, 1.5)),
        d_logp_(random_tensor(device, {n_}, "dlogp")),
        d_entropy_(s.entropy_gradient ? random_tensor(device, {n_}, "dentropy") : Tensor()),
        gathered_(device.activation({n_, s.dim}, "gathered")),
        d_gathered_(device.activation({n_, s.dim}, "dgathered")),
        logp_(device.activation({n_}, "logp")),
        entropy_(device.activation({n_}, "entropy")),
        d_hidden_(device.activation({s.tokens, s.dim}, "dhidden")),
        d_table_(device.activation({s.vocab, s.dim}, "dtable")) {}

  void forward() override {
    device_.kernels.gather_rows(*device_.queue, hidden_, positions_, gathered_);
    if (!sizes_.known) {
      score(device_, params_, gathered_, table_, targets_, temperature_, logp_, entropy_, saved_);
      return;
    }
    const auto give = [this](int64_t begin, ConstView logp, ConstView /*entropy*/, View d_logp,
                             View d_entropy) {
      device_.kernels.cast(*device_.queue, d_logp_.view().rows(begin, logp.dim(0)), d_logp);
      if (!d_entropy.empty()) {
        device_.kernels.cast(*device_.queue, d_entropy_.view().rows(begin, logp.dim(0)), d_entropy);
      }
    };
    LATHE_CHECK(logits_are_finite(device_, gathered_, table_, 0.5), "random logits");
    score_known(device_, params_, gathered_, table_, targets_, temperature_, give, sizes_.entropy_gradient,
                logp_, entropy_, d_gathered_, d_table_, false);
    spread();
  }
  void backward() override {
    if (sizes_.known) return;
    score_backward(device_, params_, d_logp_, d_entropy_, gathered_, table_, targets_, temperature_, entropy_,
                   saved_.stats, d_gathered_, d_table_, false);
    saved_ = {};
    spread();
  }
  [[nodiscard]] std::vector<std::pair<std::string, ConstView>> results() const override {
    return {{"logp", logp_}, {"entropy", entropy_}, {"dhidden", d_hidden_}, {"dtable", d_table_}};
  }

 private:
  void spread() {
    device_.kernels.fill(*device_.queue, 0, d_hidden_);
    device_.kernels.scatter_add_rows(*device_.queue, d_gathered_, positions_, d_hidden_);
  }

  Device& device_;
  HeadSizes sizes_;
  HeadParams params_;
  int64_t n_;
  Tensor hidden_, table_, positions_, targets_, temperature_, d_logp_, d_entropy_;
  Tensor gathered_, d_gathered_, logp_, entropy_, d_hidden_, d_table_;
  HeadSaved saved_;
};

}  // namespace

PartSpec head_part(const HeadSizes& s, DType dtype) {
  const int64_t n = scored_of(s);
  PartSpec spec;
  spec.name = "head";
  spec.sizes = {{"tokens", s.tokens}, {"dim", s.dim}, {"vocab", s.vocab}, {"scored", n}};
  spec.words = {{"mode", head_mode_name(s.mode)},
                {"path", s.known ? "known" : "two-pass"},
                {"entropy_gradient", s.entropy_gradient ? "yes" : "no"}};
  spec.make = [s, dtype](Device& device, bool small) -> std::unique_ptr<Part> {
    HeadSizes sizes = s;
    if (small) {
      sizes.tokens = std::min<int64_t>(s.tokens, 24);
      sizes.dim = std::min<int64_t>(s.dim, 96);
      sizes.vocab = std::min<int64_t>(s.vocab, 1537);
    }
    return std::make_unique<HeadPart>(device, sizes, dtype);
  };
  // Two blocks of tokens and, of chunked and local, two chunks; rows wider than what a product takes at once.
  for (const auto& [tokens, dim, vocab] :
       {std::array<int64_t, 3>{2 * (kHeadTileTokens + 8), 16, 520}, std::array<int64_t, 3>{16, 2056, 520}}) {
    HeadSizes sizes = s;
    sizes.tokens = std::min(s.tokens, tokens);
    sizes.dim = std::min(s.dim, dim);
    sizes.vocab = std::min(s.vocab, vocab);
    sizes.chunk = std::min(s.chunk, kHeadTileTokens);
    spec.also_checked.emplace_back(
        [sizes, dtype](Device& device) { return std::make_unique<HeadPart>(device, sizes, dtype); });
  }
  // Logits, both gradients; with two passes the logits once more.
  spec.flops = (s.known ? 6.0 : 8.0) * static_cast<double>(n) * static_cast<double>(s.dim) *
               static_cast<double>(s.vocab);
  for (const int64_t chunk : {std::min<int64_t>(256, n), std::min<int64_t>(1024, n), n}) {
    auto& products = spec.products.emplace_back();
    for (int64_t begin = 0; begin < n; begin += chunk) {
      const int64_t m = std::min(chunk, n - begin);
      products.push_back({.trans_b = true, .m = m, .n = s.vocab, .k = s.dim});
      products.push_back({.trans_b = true, .m = m, .n = s.vocab, .k = s.dim});
      products.push_back({.m = m, .n = s.dim, .k = s.vocab});
      products.push_back({.trans_a = true, .m = s.vocab, .n = s.dim, .k = m});
    }
  }
  return spec;
}

}  // namespace lathe
