#include <nlohmann/json.hpp>

#include "lathe/bench/part.h"

namespace lathe {

std::string report_text(const PartReport& report) {
  std::string sizes;
  for (const auto& [name, value] : report.sizes) {
    sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", name, value);
  }
  for (const auto& [name, word] : report.words) sizes += fmt::format(", {} {}", name, word);
  if (!report.verified) return fmt::format("{} ({}): not verified: {}", report.name, sizes, report.fault);
  const double seconds = report.forward_s + report.backward_s;
  std::string extras;
  for (const auto& [name, extra] : report.extras_s) {
    extras += fmt::format("\n  {} {:.2f} ms: {:.1f} % of forward and backward", name, 1e3 * extra,
                          100 * extra / seconds);
  }
  return fmt::format(
      "{} ({}, {}, {}, {} threads)\n"
      "  verified against the reference\n"
      "  forward {:.2f} ms, backward {:.2f} ms: {:.1f} GFLOP/s\n"
      "  library products {:.1f} GFLOP/s: ratio {:.3f}\n"
      "  memory beyond inputs, outputs and gradients: {:.1f} MiB at the peak, {:.1f} MiB kept for backward{}",
      report.name, sizes, dtype_name(report.options.dtype), isa_name(report.options.isa),
      report.options.threads, 1e3 * report.forward_s, 1e3 * report.backward_s, 1e-9 * report.flops / seconds,
      1e-9 * report.gemm_flops / report.gemm_s, report.ratio_to_gemm(),
      static_cast<double>(report.peak_extra_bytes) / (1 << 20),
      static_cast<double>(report.kept_bytes) / (1 << 20), extras);
}

std::string report_json(const PartReport& report) {
  nlohmann::ordered_json json;
  json["part"] = report.name;
  for (const auto& [name, value] : report.sizes) json[name] = value;
  for (const auto& [name, word] : report.words) json[name] = word;
  json["dtype"] = dtype_name(report.options.dtype);
  if (report.verified) {
    json["forward_s"] = report.forward_s;
    json["backward_s"] = report.backward_s;
    for (const auto& [name, seconds] : report.extras_s) json["extras_s"][name] = seconds;
    json["gemm_s"] = report.gemm_s;
    json["ratio_to_gemm"] = report.ratio_to_gemm();
    json["flops"] = report.flops;
    json["gemm_flops"] = report.gemm_flops;
    json["peak_extra_bytes"] = report.peak_extra_bytes;
    json["kept_bytes"] = report.kept_bytes;
  } else {
    json["fault"] = report.fault;
  }
  json["verified"] = report.verified;
  json["isa"] = isa_name(report.options.isa);
  json["threads"] = report.options.threads;
  return json.dump(2);
}

}  // namespace lathe
