#include <cmath>

#include <CLI/CLI.hpp>

#include "lathe/bench/exchange.h"
#include "lathe/bench/part.h"
#include "lathe/bench/step.h"
#include "lathe/cli/commands.h"
#include "lathe/core/error.h"
#include "lathe/mesh/mpi.h"

namespace lathe {
namespace {

constexpr int kNotVerified = 5;

constexpr const char* kFooter = R"(
Every part is checked against the reference first (exit 5 if it differs), then timed beside the library's matrix products
of the same shapes: medians, in one run. Use an idle machine; only ratios mean anything. exchange runs under mpirun as well:
every kind of exchange between the ranks, alone and beside products.

Examples:
  lathe bench head --tokens 2048 --dim 1024 --vocab 32768 --path known
  lathe bench attention --tokens 4096 --heads 8 --kv-heads 2
  lathe bench gdn --tokens 4096 --json
  lathe bench moe --tokens 2048 --experts 32 --top-k 4
  lathe bench step --config config.json --tokens 4096
  scripts/run_ranks.sh 2 lathe bench exchange --bytes 16MiB)";

struct CommonArguments {
  int threads = 0;
  int repeats = 5;
  std::string dtype = "f32";
  bool json = false;
};

struct BenchArguments {
  CommonArguments common;
  HeadSizes head;
  std::string head_mode = "fused";
  std::string head_path = "two-pass";
  AttentionSizes attention;
  DeltaRuleSizes delta_rule;
  MoeSizes moe;
  StepBenchOptions step;
  ExchangeBenchOptions exchange;
  std::string remat = "auto";
};

DType dtype_of(const CommonArguments& common) {
  return common.dtype == "bf16" ? DType::kBF16 : DType::kF32;
}

PartOptions part_options(const CommonArguments& common) {
  const PartOptions options{.threads = common.threads > 0 ? common.threads : available_cores(),
                            .isa = chosen_isa(),
                            .dtype = dtype_of(common),
                            .repeats = common.repeats};
  if (options.dtype == DType::kBF16 && !has_native_bf16(options.isa)) {
    config_error("--dtype bf16", fmt::format("{} does not multiply bf16 natively", isa_name(options.isa)),
                 "use f32, which is what the trainer computes with here");
  }
  return options;
}

template <typename Report>
int print_report(const Report& report, const CommonArguments& common, CommandContext& context) {
  context.output.line(common.json ? report_json(report) : report_text(report));
  return report.verified ? 0 : kNotVerified;
}

void add_common_options(CLI::App& command, CommonArguments& common, bool has_dtype) {
  command.add_option("--threads", common.threads, "0: the cores this process may use")
      ->check(CLI::Range(0, 4096));
  command.add_option("--repeats", common.repeats, "Timed repetitions after a warm-up")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  if (has_dtype) {
    command.add_option("--dtype", common.dtype, "Of matrix products")
        ->capture_default_str()
        ->check(CLI::IsMember({"f32", "bf16"}));
  }
  command.add_flag("--json", common.json, "One JSON object instead of text");
}

// An option of a size: at least 1; products of several sizes stay countable.
void add_size(CLI::App& command, const char* name, int64_t& value, const char* what, int64_t most = 1 << 24) {
  command.add_option(name, value, what)->capture_default_str()->check(CLI::Range(int64_t{1}, most));
}

// Heads that share keys.
void check_multiple(const char* many, int64_t many_value, const char* few, int64_t few_value) {
  if (many_value % few_value == 0) return;
  config_error(many, fmt::format("{} is not a multiple of {} {}", many_value, few, few_value),
               "heads share keys in equal groups");
}

void check_segments(int64_t segments, int64_t tokens) {
  if (segments <= tokens) return;
  config_error("--segments", fmt::format("{} segments in {} tokens", segments, tokens),
               "a segment has a token at least");
}

using Arguments = std::shared_ptr<BenchArguments>;

void add_head(CLI::App& bench, const Arguments& arguments, CommandContext& context) {
  CLI::App& command = *bench.add_subcommand("head", "Log-probs and entropies from hidden states");
  HeadSizes& s = arguments->head;
  add_size(command, "--tokens", s.tokens, "Tokens of the row");
  add_size(command, "--dim", s.dim, "Hidden size", 1 << 13);
  add_size(command, "--vocab", s.vocab, "Rows of the table");
  command.add_option("--mode", arguments->head_mode, "Which program")
      ->capture_default_str()
      ->check(CLI::IsMember({"chunked", "local", "fused"}));
  command.add_option("--path", arguments->head_path, "known: cotangents are known while scoring")
      ->capture_default_str()
      ->check(CLI::IsMember({"two-pass", "known"}));
  add_size(command, "--chunk", s.chunk, "Tokens of a chunk, of modes chunked and local");
  command.add_option("--scored", s.scored, "Share of the tokens whose log-probs are wanted")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  command.add_flag("--entropy-grad", s.entropy_gradient, "The entropies have cotangents too");
  add_common_options(command, arguments->common, true);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] {
      HeadSizes sizes = arguments->head;
      sizes.mode = head_mode_of(arguments->head_mode);
      sizes.known = arguments->head_path == "known";
      if (!(sizes.scored > 0)) {
        config_error("--scored", fmt::format("{} of the tokens", sizes.scored), "give a share above 0");
      }
      if (sizes.known && sizes.mode != HeadMode::kFused) {
        config_error("--path known", "needs --mode fused", "leave one of them out");
      }
      return print_report(
          run_part(head_part(sizes, dtype_of(arguments->common)), part_options(arguments->common)),
          arguments->common, context);
    };
  });
}

void add_attention(CLI::App& bench, const Arguments& arguments, CommandContext& context) {
  CLI::App& command = *bench.add_subcommand("attention", "Causal attention over packed segments");
  AttentionSizes& s = arguments->attention;
  add_size(command, "--tokens", s.tokens, "Tokens of the row");
  add_size(command, "--heads", s.heads, "Query heads", 1 << 13);
  add_size(command, "--kv-heads", s.kv_heads, "Key and value heads", 1 << 13);
  add_size(command, "--head-dim", s.head_dim, "Width of a head", 1 << 13);
  add_size(command, "--segments", s.segments, "Segments of equal length in the row");
  add_common_options(command, arguments->common, false);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] {
      check_multiple("--heads", arguments->attention.heads, "--kv-heads", arguments->attention.kv_heads);
      check_segments(arguments->attention.segments, arguments->attention.tokens);
      return print_report(run_part(attention_part(arguments->attention), part_options(arguments->common)),
                          arguments->common, context);
    };
  });
}

void add_gdn(CLI::App& bench, const Arguments& arguments, CommandContext& context) {
  CLI::App& command = *bench.add_subcommand("gdn", "The gated delta rule");
  DeltaRuleSizes& s = arguments->delta_rule;
  add_size(command, "--tokens", s.tokens, "Tokens of the row");
  add_size(command, "--key-heads", s.key_heads, "Heads of queries and keys", 1 << 13);
  add_size(command, "--value-heads", s.value_heads, "Heads of values", 1 << 13);
  add_size(command, "--key-dim", s.key_dim, "Width of a key head", 256);
  add_size(command, "--value-dim", s.value_dim, "Width of a value head", 256);
  command.add_option("--chunk", s.chunk, "Tokens of a chunk")
      ->capture_default_str()
      ->check(CLI::IsMember({int64_t{64}, int64_t{128}}));
  add_size(command, "--segments", s.segments, "Segments of equal length in the row");
  add_common_options(command, arguments->common, false);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] {
      const DeltaRuleSizes& sizes = arguments->delta_rule;
      check_multiple("--value-heads", sizes.value_heads, "--key-heads", sizes.key_heads);
      check_segments(sizes.segments, sizes.tokens);
      return print_report(run_part(delta_rule_part(sizes), part_options(arguments->common)),
                          arguments->common, context);
    };
  });
}

void add_moe(CLI::App& bench, const Arguments& arguments, CommandContext& context) {
  CLI::App& command =
      *bench.add_subcommand("moe", "A mixture of experts: router, sort, experts, shared expert");
  MoeSizes& s = arguments->moe;
  add_size(command, "--tokens", s.tokens, "Tokens of the micro-batch");
  add_size(command, "--dim", s.dim, "Hidden size", 1 << 13);
  add_size(command, "--experts", s.experts, "Experts", 1 << 13);
  add_size(command, "--top-k", s.top_k, "Experts of a token", 1 << 13);
  add_size(command, "--width", s.width, "Width of an expert", 1 << 13);
  command.add_option("--shared-width", s.shared_width, "Width of the shared expert; 0: none")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 13));
  add_common_options(command, arguments->common, true);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] {
      const MoeSizes& sizes = arguments->moe;
      if (sizes.top_k > sizes.experts) {
        config_error("--top-k", fmt::format("{} of {} experts", sizes.top_k, sizes.experts),
                     "a token's experts are distinct");
      }
      return print_report(
          run_part(moe_part(sizes, dtype_of(arguments->common)), part_options(arguments->common)),
          arguments->common, context);
    };
  });
}

void add_step(CLI::App& bench, const Arguments& arguments, CommandContext& context) {
  CLI::App& command = *bench.add_subcommand("step", "Whole optimizer steps on a random-weight model");
  StepBenchOptions& s = arguments->step;
  command.add_option("--config", s.config_path, "A config.json, or the folder that has one")->required();
  add_size(command, "--tokens", s.tokens, "Real tokens of a step, at least");
  add_size(command, "--row-length", s.row_length, "Tokens of a packed row");
  add_size(command, "--rows", s.rows_per_micro_batch, "Rows of a micro-batch");
  command.add_option("--remat", arguments->remat, "Which layers keep what backward needs")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "full", "none"}));
  add_common_options(command, arguments->common, true);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] {
      const PartOptions common = part_options(arguments->common);
      StepBenchOptions options = arguments->step;
      options.threads = common.threads;
      options.isa = common.isa;
      options.compute = common.dtype;
      options.repeats = common.repeats;
      options.remat = arguments->remat == "full"   ? RematPolicy::kFull
                      : arguments->remat == "none" ? RematPolicy::kNone
                                                   : RematPolicy::kAuto;
      return print_report(bench_step(options), arguments->common, context);
    };
  });
}

int run_exchange(const BenchArguments& arguments, CommandContext& context) {
  const Launch launch = launch_from_environment();
  ExchangeBenchOptions options = arguments.exchange;
  options.threads = arguments.common.threads > 0 ? arguments.common.threads : launch.cores();
  options.host_ranks = launch.host_ranks;
  options.isa = chosen_isa();
  options.repeats = arguments.common.repeats;
  const auto memory = make_host_memory();
  const auto communicator = make_communicator(MeshShape{1, launch.ranks, 1, 1}, *memory);
  const ExchangeBenchReport report = bench_exchange(*communicator, options);
  if (launch.rank == 0) return print_report(report, arguments.common, context);
  return report.verified ? 0 : kNotVerified;
}

void add_exchange(CLI::App& bench, const Arguments& arguments, CommandContext& context) {
  CLI::App& command =
      *bench.add_subcommand("exchange", "Exchanges between ranks, and what of them computing hides");
  command.add_option("--bytes", arguments->exchange.bytes, "Of a result: 64KiB, 16MiB, ...")
      ->capture_default_str()
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  add_common_options(command, arguments->common, false);
  command.callback([arguments, &context] {
    context.action = [arguments, &context] { return run_exchange(*arguments, context); };
  });
}

}  // namespace

void add_bench_command(CLI::App& app, CommandContext& context) {
  CLI::App& bench = *app.add_subcommand("bench", "Time a part of the trainer against its yardstick");
  bench.require_subcommand(1);
  bench.footer(kFooter);
  const auto arguments = std::make_shared<BenchArguments>();
  add_head(bench, arguments, context);
  add_attention(bench, arguments, context);
  add_gdn(bench, arguments, context);
  add_moe(bench, arguments, context);
  add_step(bench, arguments, context);
  add_exchange(bench, arguments, context);
}

}  // namespace lathe
