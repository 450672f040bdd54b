// What a user sees for each kind of fault in a run file or --set.
#include "config/config_files.h"

namespace lathe {
namespace {

using Faults = ConfigFiles;

TEST_F(Faults, UnknownKeysGetAHint) {
  EXPECT_EQ(problems_of("  row_lenght: 5\n"),
            "run.yaml:6: unknown option 'data.row_lenght' / did you mean 'data.row_length'?");
  EXPECT_EQ(problems_of("grpo:\n  learning_rate: 1\n"),
            "run.yaml:7: unknown option 'grpo.learning_rate' / did you mean 'optimizer.learning_rate'?");
  EXPECT_EQ(problems_of("optimzer:\n  eps: 1\n"),
            "run.yaml:6: unknown section 'optimzer' / did you mean 'optimizer'?");
  EXPECT_EQ(
      problems_of("learning_rate: 1\n"),
      "run.yaml:6: unknown section 'learning_rate' / did you mean 'learning_rate' of section 'optimizer'?");
  EXPECT_EQ(problems_of("", {"head.chunks=4"}),
            "--set head.chunks=4: unknown option 'head.chunks' / did you mean 'head.chunk'?");
  EXPECT_EQ(problems_of("", {"steps=4"}),
            "--set steps=4: unknown option 'steps' / did you mean 'run.steps'?");
  EXPECT_EQ(problems_of("", {"run.steps"}),
            "--set run.steps: must have the form section.key=value / for example --set "
            "optimizer.learning_rate=1e-6");
}

TEST_F(Faults, TypesAndRangesSayValueAndExpectation) {
  EXPECT_EQ(problems_of("optimizer:\n  learning_rate: -0.5\n"),
            "run.yaml:7: optimizer.learning_rate must be a number >= 0, got -0.5");
  EXPECT_EQ(problems_of("optimizer:\n  beta1: 1.0\n"),
            "run.yaml:7: optimizer.beta1 must be a number in [0, 1), got 1.0");
  EXPECT_EQ(problems_of("optimizer:\n  eps: .nan\n"),
            "run.yaml:7: optimizer.eps must be a number >= 1e-30, got '.nan'");
  EXPECT_EQ(problems_of("grpo:\n  entropy_coef: nan\n"),
            "run.yaml:7: grpo.entropy_coef must be a number, got 'nan'");
  EXPECT_EQ(problems_of("", {"optimizer.learning_rate=inf"}),
            "--set optimizer.learning_rate=inf: optimizer.learning_rate must be a number >= 0, got 'inf'");
  EXPECT_EQ(problems_of("optimizer:\n  learning_rate: \"1e-6\"\n"),
            "run.yaml:7: optimizer.learning_rate must be a number >= 0, got \"1e-6\" / remove the quotes");
  EXPECT_EQ(problems_of("  max_segments: 1.5\n"),
            "run.yaml:6: data.max_segments must be an integer in [1, 1048576], got 1.5");
  EXPECT_EQ(problems_of("  max_segments: 99999999999999999999\n"),
            "run.yaml:6: data.max_segments must be an integer in [1, 1048576], got 99999999999999999999");
  EXPECT_EQ(problems_of("  max_segments: null\n"),
            "run.yaml:6: data.max_segments must be an integer in [1, 1048576], got null");
  EXPECT_EQ(problems_of("  max_segments: [1]\n"),
            "run.yaml:6: data.max_segments must be an integer in [1, 1048576], got a list");
  EXPECT_EQ(problems_of("  pad_position: strat\n"),
            "run.yaml:6: data.pad_position must be end or start, got 'strat' / did you mean 'start'?");
  EXPECT_EQ(problems_of("grpo:\n  overlong_loss_masking: yes\n"),
            "run.yaml:7: grpo.overlong_loss_masking must be true or false, got 'yes'");
  EXPECT_EQ(problems_of("grpo:\n  sampler_is: sequence\n"),
            "run.yaml:7: grpo.sampler_is must be null or token, got 'sequence'");
  EXPECT_EQ(problems_of("grpo:\n  reward_weights: {a: b}\n"),
            "run.yaml:7: grpo.reward_weights must be a map of names to numbers, got a map");
  EXPECT_EQ(problems_of("", {"run.memory_budget=6GB"}),
            "--set run.memory_budget=6GB: run.memory_budget must be a size (bytes, or with KiB, MiB, GiB, "
            "TiB), or 0, "
            "got '6GB'");
  EXPECT_EQ(problems_of("", {"model.trainable=['(']"}),
            "--set model.trainable=['(']: model.trainable must be a list of regular expressions "
            "(ECMAScript), got a list");
  EXPECT_EQ(problems_of("", {"run.dir="}), "--set run.dir=: run.dir must be the path of a folder, got ''");
  EXPECT_EQ(problems_of("", {"run.steps=0"}),
            "--set run.steps=0: run.steps must be an integer in [1, 1000000000], got 0");
  EXPECT_EQ(problems_of("", {"data.row_length=0"}),
            "--set: data.row_length must be > 0 in lathe train, got 0 / set it to the tokens of a packed "
            "row, at least "
            "those of the longest trajectory");
  EXPECT_EQ(problems_of("", {"gdn.chunk=32"}), "--set gdn.chunk=32: gdn.chunk must be 64 or 128, got 32");
}

TEST_F(Faults, RepeatedKeysAndSectionsThatAreNoMaps) {
  EXPECT_EQ(problems_of("  row_length: 512\n"),
            "run.yaml:6: option 'data.row_length' is there twice, first on line 5 / remove one of them");
  EXPECT_EQ(problems_of("model: {}\n"),
            "run.yaml:6: section 'model' is there twice, first on line 1 / put its keys together");
  EXPECT_EQ(
      problems_of("grpo: 5\n"),
      "run.yaml:6: section 'grpo' must be a map of keys, got 5 / write its keys indented under 'grpo:'");
}

TEST_F(Faults, FilesThatAreNoRunFiles) {
  EXPECT_EQ(
      problems((folder_ / "none.yaml").string()),
      "none.yaml: cannot open the run file: No such file or directory / give the path of a YAML run file");
  std::filesystem::create_directories(folder_ / "d");
  EXPECT_EQ(problems((folder_ / "d").string()), "d: is a folder, expected a run file (YAML)");
  EXPECT_EQ(
      problems(file("- a\n- b\n")),
      "run.yaml: is a list, expected sections of keys / see examples/ for run files, and docs/config.md");
  EXPECT_EQ(problems(file("a: 1\n---\nb: 1\n")),
            "run.yaml: holds more than one YAML document, expected one / remove the '---' lines between "
            "them, or a closing "
            "bracket too many");
  // The library finds documents without end in these.
  EXPECT_EQ(problems(file(",]")).substr(0, 49), "run.yaml: holds more than one YAML document, expe");
  EXPECT_NE(problems_of("", {"run.seed=,]"}).find("holds more than one YAML document"), std::string::npos);
  const std::string broken = problems(file("model:\n  path: a\n bad: [1\n"));
  EXPECT_EQ(broken.rfind("run.yaml:", 0), 0U) << broken;
  EXPECT_NE(broken.find("not valid YAML"), std::string::npos) << broken;
  EXPECT_NE(problems_of("  rows_per_micro_batch: !!int 3\n").find("run.yaml:6: YAML tag"), std::string::npos);
  EXPECT_NE(problems(file(std::string(2 << 20, '#'))).find("larger than 1 MiB"), std::string::npos);
}

TEST_F(Faults, AliasBombsAndCyclesAreRefused) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  }
  EXPECT_NE(problems(file(bomb)).find("too many or too deeply nested values"), std::string::npos);
  EXPECT_NE(problems(file("a: &a [*a]\n")), "no problem");
}

TEST_F(Faults, MissingOptionsAreAllNamed) {
  EXPECT_EQ(
      problems(file("")),
      "run.yaml: required option 'model.path' is missing / set it: model folder in Hugging Face layout: "
      "config.json and safetensors\n"
      "run.yaml: required option 'data.rollouts' is missing / set it: a .jsonl or .jsonl.gz file, a glob, or "
      "a "
      "folder of step_*.jsonl (one file a step)\n"
      "run.yaml: required option 'data.row_length' is missing / set it: tokens of a packed row; `lathe "
      "train` "
      "needs it; 0 (score): the longest trajectory, rounded up\n"
      "run.yaml: required option 'run.dir' is missing / set it: the run folder: configuration, metrics, log, "
      "checkpoints\n"
      "run.yaml: required option 'run.steps' is missing / set it: optimizer steps of the whole run");
}

TEST_F(Faults, AllProblemsAtOnceUpToTwenty) {
  EXPECT_EQ(problems_of("  max_segment: 1\noptimizer:\n  eps: 0\n", {"mesh.data=2"}),
            "run.yaml:6: unknown option 'data.max_segment' / did you mean 'data.max_segments'?\n"
            "run.yaml:8: optimizer.eps must be a number >= 1e-30, got 0\n"
            "--set: mesh (data 2, fsdp 1, context 1, expert 1) is of 2 ranks, this run has 1 rank / start it "
            "with mpirun -np 2, or change the mesh: an axis of -1 takes all ranks that are left");
  std::string many = "grpo:\n";
  for (int i = 0; i < 30; ++i) many += fmt::format("  unknown_key_{}: 1\n", i);
  const std::string text = problems_of(many);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20) << text;
  EXPECT_NE(text.find("\nand 10 more problems"), std::string::npos) << text;
}

TEST_F(Faults, KeysWithoutEffectNameEveryUnmetRequirement) {
  EXPECT_EQ(
      problems_of("", {"optimizer.min_lr_ratio=0.5"}),
      "--set: optimizer.min_lr_ratio = 0.5: has no effect: it needs optimizer.schedule linear or cosine (is "
      "constant) / remove it, or leave it at 0.1");
  EXPECT_EQ(problems_of("", {"moe.chunk_pipeline=true"}),
            "--set: moe.chunk_pipeline = true: has no effect: it needs moe.token_chunks > 1 (is 1); it needs "
            "mesh.expert or mesh.context > 1 (is 1) / remove it, or leave it at false");
  for (const char* set :
       {"head.replicate_sequence=always", "gdn.context_parallel=heads", "attention.context_balance=false",
        "moe.expert_weight_prefetch=forward", "moe.token_chunks=2", "moe.ragged_buffer_factor=2",
        "grpo.kl_loss_mode=kl", "grpo.kl_clamp_value=1", "grpo.reference=initial",
        "grpo.sampler_is_threshold=3", "grpo.truncated_importance_sampling_ratio=3",
        "grpo.truncated_importance_sampling_ratio_min=0.3", "grpo.loss_agg_norm=5",
        "optimizer.spike_factor=3", "optimizer.weight_decay_exclude=[norm]", "data.pad_alignment=64"}) {
    const std::string text = problems_of("", {set});
    EXPECT_NE(text.find("has no effect: it needs"), std::string::npos) << set << ": " << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0) << text;
  }
}

TEST_F(Faults, KeysWithoutEffectMayHaveTheirDefault) {
  EXPECT_EQ(
      problems_of("  pad_alignment: 4096\ngrpo:\n  kl_loss_mode: low_var_kl\n  sampler_is_threshold: 2\n",
                  {"moe.chunk_pipeline=false", "optimizer.min_lr_ratio=0.1", "head.known_cotangent=off"}),
      "no problem");
}

TEST_F(Faults, KeysAboutLayersThatTheModelDoesNotHave) {
  ModelConfig dense;
  dense.family = "qwen3";
  dense.layers.resize(2);
  ModelConfig hybrid = dense;
  hybrid.layers[0] = {MixerKind::kLinearAttention, MlpKind::kMoe};
  for (const char* set :
       {"gdn.chunk=128", "moe.forced_routing=off", "moe.exclude_padding_from_routing=false"}) {
    const LoadedConfig loaded = load("", {set});
    EXPECT_NO_THROW(check_against_model(loaded, hybrid)) << set;
    EXPECT_THROW(check_against_model(loaded, dense), ConfigProblems) << set;
  }
  EXPECT_NO_THROW(check_against_model(load("", {"gdn.chunk=64", "moe.forced_routing=auto"}), dense));
}

TEST_F(Faults, KeysAboutRanksAndLayersThatTheModelDoesNotHave) {
  ModelConfig attention;
  attention.family = "qwen3";
  attention.layers.resize(2);
  ModelConfig rest = attention;
  rest.layers.assign(2, {MixerKind::kLinearAttention, MlpKind::kMoe});
  const std::vector<std::string> mesh{"mesh.fsdp=2", "mesh.context=2"};
  for (const auto& [set, in_attention] :
       {std::pair("moe.token_chunks=2", false), std::pair("moe.ragged_buffer_factor=2", false),
        std::pair("moe.expert_weight_prefetch=forward", false),
        std::pair("gdn.context_parallel=heads", false), std::pair("attention.context_balance=false", true)}) {
    const LoadedConfig loaded = load_train_config(run_file(), {mesh[0], mesh[1], set}, 4);
    const ModelConfig& has = in_attention ? attention : rest;
    const ModelConfig& has_not = in_attention ? rest : attention;
    EXPECT_NO_THROW(check_against_model(loaded, has)) << set;
    EXPECT_THROW(check_against_model(loaded, has_not), ConfigProblems) << set;
  }
}

TEST_F(Faults, WhatIsNotBuiltSaysSo) {
  const std::string text = problems_of("", {"engine.boundary=staged"});
  EXPECT_NE(text.find("not built in this version"), std::string::npos) << text;
  EXPECT_EQ(problems_of("remat:\n  moe_routing_maps: keep\n"),
            "run.yaml:7: remat.moe_routing_maps: keeping or recomputing named tensors is not built in this "
            "version / "
            "remat.policy decides for all tensors");
  EXPECT_EQ(problems_of("remat:\n  polcy: full\n"),
            "run.yaml:7: unknown option 'remat.polcy' / did you mean 'remat.policy'?");
}

TEST_F(Faults, CheckpointsAreCountedInWholeNumbers) {
  EXPECT_EQ(problems_of("", {"run.save_every=-1"}),
            "--set run.save_every=-1: run.save_every must be an integer in [0, 1000000000], got -1");
  EXPECT_EQ(problems_of("", {"run.keep=0"}),
            "--set run.keep=0: run.keep must be an integer in [1, 1000000000], got 0");
  EXPECT_EQ(problems_of("", {"run.save_every=null"}),
            "--set run.save_every=null: run.save_every must be an integer in [0, 1000000000], got null");
  EXPECT_NO_THROW(static_cast<void>(load("", {"run.save_every=1000", "run.keep=1", "run.resume=a/b"})));
}

TEST_F(Faults, RefusedValuesCauseNoFurtherComplaints) {
  EXPECT_EQ(problems_of("grpo:\n  beta: small\n  kl_loss_mode: kl\n"),
            "run.yaml:7: grpo.beta must be a number >= 0, got 'small'");
}

TEST_F(Faults, MicroBatchesThatOverflow) {
  EXPECT_NE(problems_of("  rows_per_micro_batch: 1000000\n", {"data.row_length=1000000"})
                .find("more than a micro-batch"),
            std::string::npos);
}

}  // namespace
}  // namespace lathe
