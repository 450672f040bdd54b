#include <nlohmann/json.hpp>

#include "lathe/bench/step.h"

namespace lathe {

std::string report_text(const StepBenchReport& r) {
  if (!r.verified) return fmt::format("step: not verified: {}", r.fault);
  return fmt::format(
      "step of {} parameters, {} real tokens ({} computed, {} scored) ({}, {}, {} threads, remat {})\n"
      "  verified against the reference\n"
      "  forward {:.1f} ms, backward {:.1f} ms, update {:.1f} ms: {:.0f} tokens/s\n"
      "  model {:.1f} GFLOP/s, library products {:.1f} GFLOP/s: ratio {:.3f}\n"
      "  activations and scratch at the peak: {:.1f} MiB",
      r.parameters, r.tokens, r.computed_tokens, r.scored_tokens, dtype_name(r.options.compute),
      isa_name(r.options.isa), r.options.threads, r.remat, 1e3 * r.forward_s, 1e3 * r.backward_s,
      1e3 * r.update_s, static_cast<double>(r.tokens) / r.seconds(), 1e-9 * r.flops / r.seconds(),
      1e-9 * r.gemm_flops_per_s, r.ratio_to_gemm(), static_cast<double>(r.peak_extra_bytes) / (1 << 20));
}

std::string report_json(const StepBenchReport& r) {
  nlohmann::ordered_json json;
  json["part"] = "step";
  json["tokens"] = r.tokens;
  json["dim"] = r.dim;
  json["vocab"] = r.vocab;
  json["parameters"] = r.parameters;
  json["row_length"] = r.options.row_length;
  json["dtype"] = dtype_name(r.options.compute);
  if (r.verified) {
    json["computed_tokens"] = r.computed_tokens;
    json["scored_tokens"] = r.scored_tokens;
    json["remat"] = r.remat;
    json["forward_s"] = r.forward_s;
    json["backward_s"] = r.backward_s;
    json["update_s"] = r.update_s;
    json["gemm_s"] = r.flops / r.gemm_flops_per_s;
    json["ratio_to_gemm"] = r.ratio_to_gemm();
    json["flops"] = r.flops;
    json["tokens_per_s"] = static_cast<double>(r.tokens) / r.seconds();
    json["model_flops_per_s"] = r.flops / r.seconds();
    json["gemm_flops_per_s"] = r.gemm_flops_per_s;
    json["peak_extra_bytes"] = r.peak_extra_bytes;
  } else {
    json["fault"] = r.fault;
  }
  json["verified"] = r.verified;
  json["isa"] = isa_name(r.options.isa);
  json["threads"] = r.options.threads;
  return json.dump(2);
}

}  // namespace lathe
