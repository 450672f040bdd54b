// `lathe bench attention|gdn|moe`: one part of the trainer program against its yardstick, the library's matrix products of
// the same shapes in the same run. A part is checked against the plain reference before it is timed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/head/log_prob_head.h"
#include "lathe/kernels/device.h"
#include "lathe/kernels/onednn_gemm.h"

namespace lathe {

// One operation on one device with its inputs; backward follows forward. What forward keeps for backward it allocates, and
// backward frees it; inputs, outputs and gradients are there from the start.
class Part {
 public:
  virtual ~Part() = default;
  virtual void forward() = 0;
  virtual void backward() = 0;
  // What the part costs besides on a context rank, by name; may be called after forward.
  using Extra = std::pair<std::string, std::function<void()>>;
  [[nodiscard]] virtual std::vector<Extra> extras() { return {}; }
  // Outputs and gradients, to be compared after all of these.
  [[nodiscard]] virtual std::vector<std::pair<std::string, ConstView>> results() const = 0;
};

struct PartSpec {
  std::string name;
  // Sizes by name, for the report.
  std::vector<std::pair<std::string, int64_t>> sizes;
  // On a device, at the size to be timed; or, small, at one where the reference takes no time.
  std::function<std::unique_ptr<Part>(Device& device, bool small)> make;
  // Further small ones to be checked: what the first cannot reach, such as a second block or a wide row.
  std::vector<std::function<std::unique_ptr<Part>(Device& device)>> also_checked;
  double flops = 0;  // counted, forward and backward
  // The yardstick: ways to do the same products; the fastest counts. `threads` and `type` are filled in.
  std::vector<std::vector<LibraryGemm::Problem>> products;
  std::vector<std::pair<std::string, std::string>> words;  // modes and the like, for the report
};

struct PartOptions {
  int threads = 1;
  Isa isa = Isa::kAvx2;
  DType dtype = DType::kF32;  // of products
  int repeats = 5;
};

struct PartReport {
  std::string name;
  std::vector<std::pair<std::string, int64_t>> sizes;
  std::vector<std::pair<std::string, std::string>> words;
  PartOptions options;
  double forward_s = 0;  // medians after a warm-up
  double backward_s = 0;
  std::vector<std::pair<std::string, double>> extras_s;
  double gemm_s = 0;
  double gemm_flops = 0;
  double flops = 0;
  int64_t peak_extra_bytes = 0;  // beyond inputs, outputs and gradients
  int64_t kept_bytes = 0;        // between forward and backward
  bool verified = false;
  std::string fault;  // what differs when it is not
  // Seconds the products would take for the FLOPs counted, over forward and backward.
  [[nodiscard]] double ratio_to_gemm() const;
};

// A part that is not verified is not timed. Config error for sizes that do not fit into memory.
[[nodiscard]] PartReport run_part(const PartSpec& spec, const PartOptions& options);

[[nodiscard]] std::string report_text(const PartReport& report);
[[nodiscard]] std::string report_json(const PartReport& report);

struct HeadSizes {
  int64_t tokens = 2048;
  int64_t dim = 1024;
  int64_t vocab = 32768;
  HeadMode mode = HeadMode::kFused;
  bool known = false;  // cotangents known while scoring: one pass, all of it counted as forward
  int64_t chunk = 1024;
  double scored = 1;  // share of the tokens whose log-probs are wanted
  bool entropy_gradient = false;
};
[[nodiscard]] PartSpec head_part(const HeadSizes& sizes, DType dtype);

struct AttentionSizes {
  int64_t tokens = 2048;
  int64_t heads = 8;
  int64_t kv_heads = 2;
  int64_t head_dim = 64;
  int64_t segments = 1;  // of equal length
};
[[nodiscard]] PartSpec attention_part(const AttentionSizes& sizes);

struct DeltaRuleSizes {
  int64_t tokens = 2048;
  int64_t key_heads = 4;
  int64_t value_heads = 8;
  int64_t key_dim = 64;
  int64_t value_dim = 64;
  int64_t chunk = 64;
  int64_t segments = 1;
};
[[nodiscard]] PartSpec delta_rule_part(const DeltaRuleSizes& sizes);

struct MoeSizes {
  int64_t tokens = 2048;
  int64_t dim = 512;
  int64_t experts = 16;
  int64_t top_k = 4;
  int64_t width = 256;         // of an expert
  int64_t shared_width = 256;  // of the shared expert; 0 = none
};
[[nodiscard]] PartSpec moe_part(const MoeSizes& sizes, DType dtype);

}  // namespace lathe
