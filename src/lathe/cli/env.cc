#include <cstdlib>
#include <fstream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "lathe/cli/commands.h"
#include "lathe/core/cpu.h"
#include "lathe/core/error.h"
#include "lathe/core/parallel.h"
#include "lathe/kernels/onednn_gemm.h"
#include "lathe/mesh/mpi.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFooter = R"(
Paste the output into bug reports. LATHE_ISA=avx2 (avx512, avx512_bf16, amx) lowers the instruction set.

Examples:
  lathe env
  lathe env --json)";

// Value of a line "Name:  123 kB" of /proc/meminfo in bytes; 0 if it is not there.
int64_t memory_bytes(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  std::string rest;
  while (file >> key >> kilobytes && std::getline(file, rest)) {
    if (key == name + ":") return kilobytes * 1024;
  }
  return 0;
}

Json cpu_report() {
  const CpuInfo info = cpu_info();
  Json found = Json::array();
  for (int isa = 0; info.avx2 && isa <= static_cast<int>(info.best); ++isa)
    found.push_back(isa_name(static_cast<Isa>(isa)));
  Json report;
  report["model"] = info.model;
  report["isa_found"] = found;
  try {
    report["isa_used"] = isa_name(chosen_isa());
  } catch (const Error& e) {
    report["isa_used"] = fmt::format("none: {}", e.what());
  }
  const char* asked = std::getenv("LATHE_ISA");  // NOLINT(concurrency-mt-unsafe): read at start-up
  report["LATHE_ISA"] = asked == nullptr ? Json() : Json(asked);
  return report;
}

Json environment() {
  Json report;
  report["version"] = LATHE_VERSION;
  report["compiler"] = LATHE_COMPILER;
  report["build_type"] = LATHE_BUILD_TYPE;
  report["sanitizers"] = std::string(LATHE_SANITIZERS).empty() ? "none" : LATHE_SANITIZERS;
  report["libraries"] = {{"oneDNN", onednn_version()},
                         {"fmt", LATHE_FMT},
                         {"spdlog", LATHE_SPDLOG},
                         {"yaml-cpp", LATHE_YAML_CPP},
                         {"nlohmann_json", LATHE_NLOHMANN},
                         {"RapidJSON", LATHE_RAPIDJSON},
                         {"CLI11", LATHE_CLI11},
                         {"zlib", LATHE_ZLIB}};
  report["cpu"] = cpu_report();
  report["cores_online"] = sysconf(_SC_NPROCESSORS_ONLN);
  report["threads"] = available_cores();
  report["memory_total_bytes"] = memory_bytes("MemTotal");
  report["memory_available_bytes"] = memory_bytes("MemAvailable");
  report["mpi"] = mpi_version();
  return report;
}

std::string as_text(const Json& value) {
  if (value.is_null()) return "not set";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : " ") + as_text(item);
  return text;
}

void print_report(const Json& report, const std::string& indent, Output& output) {
  for (const auto& [key, value] : report.items()) {
    if (value.is_object()) {
      output.line(fmt::format("{}{}:", indent, key));
      print_report(value, indent + "  ", output);
    } else {
      output.line(fmt::format("{}{}: {}", indent, key, as_text(value)));
    }
  }
}

}  // namespace

void add_env_command(CLI::App& app, CommandContext& context) {
  CLI::App& command = *app.add_subcommand("env", "Describe this build and this machine, for a bug report");
  auto json = std::make_shared<bool>(false);  // shared: outlives this function inside the action
  command.add_flag("--json", *json, "Print JSON");
  command.footer(kFooter);
  command.callback([json, &context] {
    context.action = [json, &context] {
      const Json report = environment();
      if (*json) {
        context.output.line(report.dump(2, ' ', false, Json::error_handler_t::replace));
      } else {
        print_report(report, "", context.output);
      }
      return 0;
    };
  });
}

}  // namespace lathe
