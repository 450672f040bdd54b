#include <nlohmann/json.hpp>

#include "lathe/bench/exchange.h"
#include "lathe/core/memory.h"

namespace lathe {

std::string report_text(const ExchangeBenchReport& report) {
  const std::string title = fmt::format("exchange ({} rank{}", report.ranks, report.ranks == 1 ? "" : "s");
  if (!report.verified) return fmt::format("{}): not verified: {}", title, report.fault);
  std::string out = fmt::format("{}, {}, {} threads each)\n  verified against expected values", title,
                                isa_name(report.options.isa), report.options.threads);
  if (report.ranks == 1) {
    out += "\n  one rank exchanges nothing; several: scripts/run_ranks.sh N lathe bench exchange";
  }
  for (const ExchangeTimes& times : report.exchanges) {
    out += fmt::format("\n  {:<14} {:>9}: {:.2f} ms", times.kind, bytes_text(times.result_bytes),
                       1e3 * times.alone_s);
    if (report.ranks == 1) continue;
    out += fmt::format(
        ", {} on the wire, {:.2f} GB/s; products {:.1f} ms, both {:.1f} ms: {:.0f} % hidden, {:.2f} ms "
        "waited "
        "for",
        bytes_text(times.wire_bytes), 1e-9 * times.bytes_per_s(), 1e3 * times.compute_s,
        1e3 * times.together_s, 100 * times.hidden_share(), 1e3 * times.exposed_s);
  }
  return out;
}

std::string report_json(const ExchangeBenchReport& report) {
  nlohmann::ordered_json json;
  json["part"] = "exchange";
  json["ranks"] = report.ranks;
  json["bytes"] = report.options.bytes;
  if (report.verified) {
    json["exchanges"] = nlohmann::ordered_json::array();
    for (const ExchangeTimes& times : report.exchanges) {
      nlohmann::ordered_json one{{"kind", times.kind},
                                 {"result_bytes", times.result_bytes},
                                 {"wire_bytes", times.wire_bytes},
                                 {"seconds", times.alone_s},
                                 {"bytes_per_s", times.bytes_per_s()}};
      if (report.ranks > 1) {
        one["compute_s"] = times.compute_s;
        one["together_s"] = times.together_s;
        one["exposed_s"] = times.exposed_s;
        one["hidden_share"] = times.hidden_share();
        one["progress_share"] = times.progress_share();
      }
      json["exchanges"].push_back(std::move(one));
    }
  } else {
    json["fault"] = report.fault;
  }
  json["verified"] = report.verified;
  json["isa"] = isa_name(report.options.isa);
  json["threads"] = report.options.threads;
  return json.dump(2);
}

}  // namespace lathe
