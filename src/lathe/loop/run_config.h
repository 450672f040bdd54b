// Everything a run file can say, as plain structs; config/ fills it from YAML and --set, and checks it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/engine/optimizer_config.h"
#include "lathe/grpo/config.h"

namespace lathe {

struct ModelSection {
  std::string path;
  std::string weight_dtype = "f32";    // f32, bf16
  std::string compute_dtype = "auto";  // auto, f32, bf16
  std::vector<std::string> trainable;  // regexes on Hugging Face names; empty = all
};

struct DataSection {
  std::string rollouts;
  int64_t trajectories_per_step = 0;
  int64_t row_length = 0;
  int64_t rows_per_micro_batch = 1;
  int64_t max_segments = 64;
  int64_t segment_alignment = 64;
  std::string pad_position = "end";  // end, start
  int64_t pad_alignment = 4096;
  std::string on_bad_line = "error";  // error, skip
  double wait_s = 0;
};

struct HeadSection {
  std::string mode = "auto";  // auto, chunked, local, fused; see chosen_head_mode
  int64_t chunk = 1024;
  std::string known_cotangent = "auto";
  std::string replicate_sequence = "auto";
};

// head.mode, with auto resolved: local where its chunk is given, else fused.
[[nodiscard]] std::string chosen_head_mode(const HeadSection& head);

struct RematSection {
  std::string policy = "auto";  // auto, full, none
};

struct MoeSection {
  double ragged_buffer_factor = -1;
  int64_t token_chunks = 1;
  bool chunk_pipeline = false;
  std::string expert_weight_prefetch = "none";
  bool exclude_padding_from_routing = true;
  std::string forced_routing = "auto";  // auto, off
};

struct GdnSection {
  int64_t chunk = 64;  // 64, 128
  std::string context_parallel = "auto";
};

struct AttentionSection {
  bool context_balance = true;
};

struct MeshSection {
  int64_t data = 1;
  int64_t fsdp = 1;
  int64_t context = 1;
  int64_t expert = 1;
};

struct EngineSection {
  int64_t max_inflight = 2;
  std::string boundary = "pipelined";  // pipelined, staged
};

struct RunSection {
  std::string dir;
  int64_t steps = 0;
  uint64_t seed = 0;
  int64_t threads = 0;
  int64_t save_every = 0;
  int64_t keep = 2;
  std::string resume = "auto";
  std::string device = "cpu";
  int64_t memory_budget = 0;  // bytes; 0 = 0.7 of the memory free at start
};

struct RunConfig {
  ModelSection model;
  DataSection data;
  GrpoConfig grpo;
  OptimizerConfig optimizer;
  HeadSection head;
  RematSection remat;
  MoeSection moe;
  GdnSection gdn;
  AttentionSection attention;
  MeshSection mesh;
  EngineSection engine;
  RunSection run;
};

// What is chosen for head.mode and head.known_cotangent, and why: "fused: the fastest ...".
[[nodiscard]] std::string head_mode_choice(const HeadSection& head);
[[nodiscard]] std::string known_cotangent_choice(const RunConfig& config);

}  // namespace lathe
