#include "lathe/bench/part.h"

#include <chrono>
#include <cmath>
#include <thread>

#include "lathe/bench/measure.h"

namespace lathe {
namespace {

// f32 products of reference-sized problems stay within the first, inputs rounded to bf16 within the second.
constexpr double kTolerance = 2e-4;
constexpr double kTolerance16 = 4e-2;
// Library threads spin for a while after their work; they must not take cores from what is timed next.
constexpr auto kPause = std::chrono::milliseconds(20);

Device make_device(const PartOptions& options, bool reference) {
  return Device({.name = reference ? "ref" : "cpu",
                 .threads = reference ? 1 : options.threads,
                 .isa = options.isa,
                 .poison = true,
                 .float_type = reference ? DType::kF64 : DType::kF32});
}

double norm(const std::vector<double>& values) {
  double square = 0;
  for (const double x : values) square += x * x;
  return std::sqrt(square);
}

// Empty if the fast path agrees with the reference in double, else what differs.
std::string difference(const PartSpec& spec, const PartOptions& options) {
  Device fast_device = make_device(options, false);
  Device plain_device = make_device(options, true);
  const auto fast = spec.make(fast_device, true);
  const auto plain = spec.make(plain_device, true);
  for (Part* part : {fast.get(), plain.get()}) {
    part->forward();
    part->backward();
  }
  const auto expected = plain->results();
  const auto actual = fast->results();
  const double tolerance = options.dtype == DType::kBF16 ? kTolerance16 : kTolerance;
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::vector<double> want = host_values(plain_device, expected[i].second);
    std::vector<double> got = host_values(fast_device, actual[i].second);
    for (size_t j = 0; j < got.size(); ++j) got[j] -= want[j];
    const double error = norm(got) / std::max(norm(want), 1e-30);
    if (!(error <= tolerance)) {
      return fmt::format("{} is {:.2g} from the reference, expected at most {:.0g}", expected[i].first, error,
                         tolerance);
    }
  }
  return "";
}

struct Yardstick {
  explicit Yardstick(const PartSpec& spec, const PartOptions& options) {
    for (LibraryGemm::Problem problem : spec.products) {
      problem.threads = options.threads;
      problem.type = options.dtype;
      flops += 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
               static_cast<double>(problem.k);
      gemms.push_back(std::make_unique<LibraryGemm>(problem));
      const int64_t size = dtype_size(problem.type);
      a.emplace_back(static_cast<size_t>(problem.m * problem.k * size), std::byte{0x3c});
      b.emplace_back(static_cast<size_t>(problem.k * problem.n * size), std::byte{0x3c});
      c.emplace_back(static_cast<size_t>(problem.m * problem.n), 0.0F);  // touched beforehand
    }
  }
  void run() {
    for (size_t i = 0; i < gemms.size(); ++i) gemms[i]->run(a[i].data(), b[i].data(), c[i].data());
  }
  double flops = 0;
  std::vector<std::unique_ptr<LibraryGemm>> gemms;
  std::vector<std::vector<std::byte>> a, b;
  std::vector<std::vector<float>> c;
};

}  // namespace

double PartReport::ratio_to_gemm() const {
  return gemm_s * (flops / gemm_flops) / (forward_s + backward_s);
}

PartReport run_part(const PartSpec& spec, const PartOptions& options) {
  PartReport report;
  report.name = spec.name;
  report.sizes = spec.sizes;
  report.options = options;
  report.flops = spec.flops;
  report.fault = difference(spec, options);
  report.verified = report.fault.empty();
  if (!report.verified) return report;

  Device device = make_device(options, false);
  const auto part = spec.make(device, false);
  Yardstick yardstick(spec, options);
  report.gemm_flops = yardstick.flops;
  const int64_t base = device.memory->live().total();
  device.memory->reset_peak();
  part->forward();  // warm-up: first touch of memory, creation of primitives
  report.kept_bytes = device.memory->live().total() - base;
  part->backward();
  report.peak_extra_bytes = device.memory->peak().total() - base;
  yardstick.run();
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> gemm;
  for (int i = 0; i < options.repeats; ++i) {
    std::this_thread::sleep_for(kPause);
    forward.push_back(seconds_of([&] { part->forward(); }));
    backward.push_back(seconds_of([&] { part->backward(); }));
    gemm.push_back(seconds_of([&] { yardstick.run(); }));
  }
  report.forward_s = median(forward);
  report.backward_s = median(backward);
  report.gemm_s = median(gemm);
  return report;
}

}  // namespace lathe
