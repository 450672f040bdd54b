#include "head/head_runs.h"

namespace lathe::test {

HeadInputs random_head_inputs(int64_t tokens, int64_t dim, int64_t vocab) {
  HeadInputs in{
      random_array({tokens, dim}, 1),       random_array({vocab, dim}, 2, 0.5), {},
      uniform_array({tokens}, 3, 0.5, 1.5), random_array({tokens}, 4),          random_array({tokens}, 5),
      random_array({vocab, dim}, 6)};
  for (HostArray* values : {&in.hidden, &in.table, &in.temperature, &in.dlogp, &in.dentropy, &in.dtable}) {
    for (double& x : values->values) x = static_cast<double>(static_cast<float>(x));
  }
  for (int64_t t = 0; t < tokens; ++t) in.targets.push_back(static_cast<int32_t>((t * 7919 + 3) % vocab));
  return in;
}

HeadWay chunked(int64_t chunk, DType compute) {
  return {{.mode = HeadMode::kChunked, .chunk = chunk, .compute = compute}, false};
}
HeadWay local(int64_t chunk, DType compute) {
  return {{.mode = HeadMode::kLocal, .chunk = chunk, .compute = compute}, false};
}
HeadWay fused(DType compute) {
  return {{.mode = HeadMode::kFused, .chunk = 1024, .compute = compute}, false};
}
HeadWay known(DType compute) {
  return {{.mode = HeadMode::kFused, .chunk = 1024, .compute = compute}, true};
}
std::string name_of(const HeadWay& way) {
  if (way.known) return "known cotangent";
  if (way.params.mode == HeadMode::kFused) return "fused";
  return fmt::format("{} {}", head_mode_name(way.params.mode), way.params.chunk);
}

HeadResults run_head(const Device& device, const HeadWay& way, const HeadInputs& in, DType table_type,
                     bool accumulate) {
  const Shape tokens{in.hidden.shape[0]};
  const Tensor hidden = to_device(device, in.hidden);
  const Tensor table = to_device(device, in.table, table_type);
  const Tensor targets = to_device(device, integer_array(tokens, in.targets), DType::kI32);
  const Tensor temperature = to_device(device, in.temperature);
  const Tensor logp = poisoned(device, tokens);
  const Tensor entropy = poisoned(device, tokens);
  const Tensor dlogp = to_device(device, in.dlogp);
  Tensor dentropy;
  if (in.dentropy.shape.rank() > 0) dentropy = to_device(device, in.dentropy);
  const Tensor dhidden = poisoned(device, in.hidden.shape);
  Tensor dtable;
  if (in.dtable.shape.rank() > 0) dtable = to_device(device, in.dtable);
  HeadSaved saved;
  device.memory->reset_peak();
  if (way.known) {
    const auto give = [&](int64_t begin, ConstView lp, ConstView h, View d_lp, View d_h) {
      EXPECT_EQ(to_host(device, h).size(), lp.size());
      device.kernels.cast(*device.queue, dlogp.view().rows(begin, lp.dim(0)), d_lp);
      if (!d_h.empty()) device.kernels.cast(*device.queue, dentropy.view().rows(begin, lp.dim(0)), d_h);
    };
    score_known(device, way.params, hidden, table, targets, temperature, give, !dentropy.empty(), logp,
                entropy, dhidden, dtable, accumulate);
  } else {
    score(device, way.params, hidden, table, targets, temperature, logp, entropy, saved);
    score_backward(device, way.params, dlogp, dentropy, hidden, table, targets, temperature, entropy,
                   saved.stats, dhidden, dtable, accumulate);
  }
  return {to_host(device, logp), to_host(device, entropy), to_host(device, dhidden),
          dtable.empty() ? HostArray() : to_host(device, dtable),
          device.memory->peak().of(MemoryKind::kScratch)};
}

HeadResults run_head(const Device& device, const HeadWay& way, const HeadInputs& in) {
  return run_head(device, way, in, device.float_type());
}

void expect_alike(const HeadResults& actual, const HeadResults& expected, double tolerance,
                  const std::string& what) {
  expect_near(actual.logp, expected.logp, tolerance, "logp " + what);
  expect_near(actual.entropy, expected.entropy, tolerance, "entropy " + what);
  expect_near(actual.dhidden, expected.dhidden, tolerance, "dhidden " + what);
  expect_near(actual.dtable, expected.dtable, tolerance, "dtable " + what);
}

void expect_same_results(const HeadResults& actual, const HeadResults& expected, const std::string& what) {
  expect_same(actual.logp, expected.logp, "logp " + what);
  expect_same(actual.entropy, expected.entropy, "entropy " + what);
  expect_same(actual.dhidden, expected.dhidden, "dhidden " + what);
  expect_same(actual.dtable, expected.dtable, "dtable " + what);
}

}  // namespace lathe::test
