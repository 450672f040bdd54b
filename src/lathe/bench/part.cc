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
constexpr double kRounding = 1e-2;
// Library threads spin for a while after their work; they must not take cores from what is timed next.
constexpr auto kPause = std::chrono::milliseconds(20);

Device make_device(const PartOptions& options, bool reference, bool poison = true) {
  return Device({.name = reference ? "ref" : "cpu",
                 .threads = reference ? 1 : options.threads,
                 .isa = options.isa,
                 .poison = poison,
                 .float_type = reference ? DType::kF64 : DType::kF32});
}

double norm(const std::vector<double>& values) {
  double square = 0;
  for (const double x : values) square += x * x;
  return std::sqrt(square);
}

using MakePart = std::function<std::unique_ptr<Part>(Device& device)>;

// Empty if the fast path agrees with the reference in double, else what differs.
std::string difference(const MakePart& make, const PartOptions& options) {
  Device fast_device = make_device(options, false);
  Device plain_device = make_device(options, true);
  const auto fast = make(fast_device);
  const auto plain = make(plain_device);
  for (Part* part : {fast.get(), plain.get()}) {
    part->forward();
    part->backward();
    for (const auto& [name, run] : part->extras()) run();
  }
  const auto expected = plain->results();
  const auto actual = fast->results();
  const double tolerance = options.dtype == DType::kBF16 ? kTolerance16 : kTolerance;
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::vector<double> want = host_values(plain_device, expected[i].second);
    std::vector<double> got = host_values(fast_device, actual[i].second);
    for (size_t j = 0; j < got.size(); ++j) got[j] -= want[j];
    // What is 0 but for rounding has no size of its own to compare with.
    const double size = std::max(norm(want), kRounding * std::sqrt(static_cast<double>(want.size())));
    const double error = norm(got) / size;
    if (!(error <= tolerance)) {
      return fmt::format("{} is {:.2g} from the reference, expected at most {:.0g}", expected[i].first, error,
                         tolerance);
    }
  }
  return "";
}

std::string difference(const PartSpec& spec, const PartOptions& options) {
  std::string fault = difference([&](Device& device) { return spec.make(device, true); }, options);
  for (const MakePart& make : spec.also_checked) {
    if (fault.empty()) fault = difference(make, options);
  }
  return fault;
}

// One way to do the products; inputs and outputs, touched beforehand, are shared between them.
class Yardstick {
 public:
  Yardstick(std::vector<LibraryGemm::Problem> problems, const PartOptions& options) {
    int64_t a = 0;
    int64_t b = 0;
    int64_t c = 0;
    for (LibraryGemm::Problem& problem : problems) {
      problem.threads = options.threads;
      problem.type = options.dtype;
      flops_ += 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                static_cast<double>(problem.k);
      gemms_.push_back(std::make_unique<LibraryGemm>(problem));
      a = std::max(a, problem.m * problem.k * dtype_size(problem.type));
      b = std::max(b, problem.k * problem.n * dtype_size(problem.type));
      c = std::max(c, problem.m * problem.n);
    }
    a_.assign(static_cast<size_t>(a), std::byte{0x3c});
    b_.assign(static_cast<size_t>(b), std::byte{0x3c});
    c_.assign(static_cast<size_t>(c), 0.0F);
  }
  void run() {
    for (const auto& gemm : gemms_) gemm->run(a_.data(), b_.data(), c_.data());
  }
  [[nodiscard]] double flops() const { return flops_; }

 private:
  double flops_ = 0;
  std::vector<std::unique_ptr<LibraryGemm>> gemms_;
  std::vector<std::byte> a_, b_;
  std::vector<float> c_;
};

// Every way is run twice, the first time to warm up.
std::unique_ptr<Yardstick> fastest(const PartSpec& spec, const PartOptions& options) {
  std::unique_ptr<Yardstick> best;
  double best_s = 0;
  for (const auto& problems : spec.products) {
    auto way = std::make_unique<Yardstick>(problems, options);
    way->run();
    const double seconds = spec.products.size() > 1 ? seconds_of([&] { way->run(); }) : 0;
    if (best != nullptr && seconds >= best_s) continue;
    best = std::move(way);
    best_s = seconds;
  }
  return best;
}

}  // namespace

double PartReport::ratio_to_gemm() const {
  return gemm_s * (flops / gemm_flops) / (forward_s + backward_s);
}

namespace {

void check_fits(const PartSpec& spec) {
  Device plan({.name = "plan", .threads = 1, .isa = Isa::kAvx2, .poison = false, .float_type = DType::kF32});
  const auto part = spec.make(plan, false);
  part->forward();
  part->backward();
  const int64_t needed = plan.memory->peak().total();
  const int64_t available = available_memory_bytes();
  if (needed <= available) return;
  config_error("lathe bench " + spec.name,
               fmt::format("these sizes need {}, but {} of memory are free", bytes_text(needed),
                           bytes_text(available)),
               "make them smaller");
}

}  // namespace

PartReport run_part(const PartSpec& spec, const PartOptions& options) {
  check_fits(spec);
  PartReport report;
  report.name = spec.name;
  report.sizes = spec.sizes;
  report.words = spec.words;
  report.options = options;
  report.flops = spec.flops;
  report.fault = difference(spec, options);
  report.verified = report.fault.empty();
  if (!report.verified) return report;

  Device device = make_device(options, false, false);  // filling memory would be timed too
  const auto part = spec.make(device, false);
  const int64_t base = device.memory->live().total();
  device.memory->reset_peak();
  part->forward();  // warm-up: first touch of memory, creation of primitives
  report.kept_bytes = device.memory->live().total() - base;
  part->backward();
  report.peak_extra_bytes = device.memory->peak().total() - base;
  const auto yardstick = fastest(spec, options);
  report.gemm_flops = yardstick->flops();
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> gemm;
  for (int i = 0; i < options.repeats; ++i) {
    std::this_thread::sleep_for(kPause);
    forward.push_back(seconds_of([&] { part->forward(); }));
    backward.push_back(seconds_of([&] { part->backward(); }));
    gemm.push_back(seconds_of([&] { yardstick->run(); }));
  }
  for (const auto& [name, run] : part->extras()) {
    std::vector<double> seconds;
    for (int i = 0; i <= options.repeats; ++i) seconds.push_back(seconds_of(run));
    seconds.erase(seconds.begin());  // warm-up
    report.extras_s.emplace_back(name, median(seconds));
  }
  report.forward_s = median(forward);
  report.backward_s = median(backward);
  report.gemm_s = median(gemm);
  return report;
}

}  // namespace lathe
