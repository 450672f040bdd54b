// Options of the parts of a model's layers.
#include <algorithm>

#include "lathe/config/option_rows.h"

namespace lathe {
namespace {

void in_moe_layers(Option& option) {
  option.model_part = "mixture-of-experts layers";
  option.in_model = [](const ModelConfig& model) { return model.num_moe_layers() > 0; };
}

void in_layers_of(Option& option, MixerKind mixer, const char* part) {
  option.model_part = part;
  option.in_model = [mixer](const ModelConfig& model) {
    return std::any_of(model.layers.begin(), model.layers.end(),
                       [mixer](const LayerKind& layer) { return layer.mixer == mixer; });
  };
}

}  // namespace

void add_layer_options(std::vector<Option>* table) {
  Rows<MoeSection> moe(table, "moe", &RunConfig::moe);
  // Experts are divided over both axes.
  const Requirement expert_ranks{"mesh.expert", "or mesh.context > 1",
                                 [](const RunConfig& c) { return c.mesh.context > 1 || c.mesh.expert > 1; }};
  Option& room = moe.number(
      "ragged_buffer_factor", &MoeSection::ragged_buffer_factor, at_least(-1),
      "room for routed tokens of a rank, as a multiple of a balanced load; 0 or less: no token is dropped");
  room.needs = {expert_ranks};
  in_moe_layers(room);
  Option& chunks = moe.integer("token_chunks", &MoeSection::token_chunks, from_to(1, kMostTokens),
                               "pieces in which tokens go through the experts");
  chunks.needs = {expert_ranks};
  in_moe_layers(chunks);
  Option& pipeline = moe.flag("chunk_pipeline", &MoeSection::chunk_pipeline,
                              "the next piece is exchanged while one is computed");
  pipeline.needs = {{"moe.token_chunks", "> 1", [](const RunConfig& c) { return c.moe.token_chunks > 1; }},
                    expert_ranks};
  in_moe_layers(pipeline);
  Option& prefetch = moe.word("expert_weight_prefetch", &MoeSection::expert_weight_prefetch,
                              {"none", "forward", "forward_backward"},
                              "expert weights are gathered while the layer's mixer runs");
  prefetch.needs = {axis_above_one("fsdp", &MeshSection::fsdp)};
  in_moe_layers(prefetch);
  Option& padding = moe.flag("exclude_padding_from_routing", &MoeSection::exclude_padding_from_routing,
                             "padding tokens are sent to no expert");
  padding.score = true;
  in_moe_layers(padding);
  Option& forced =
      moe.word("forced_routing", &MoeSection::forced_routing, {"auto", "off"},
               "auto: tokens go to the experts that routed_experts names, where a trajectory has it");
  forced.score = true;
  in_moe_layers(forced);
  forced.choice = [](const RunConfig&) { return std::string("where a trajectory has routed_experts"); };

  Rows<GdnSection> gdn(table, "gdn", &RunConfig::gdn);
  Option& chunk = gdn.integer_choice("chunk", &GdnSection::chunk, {"64", "128"},
                                     "tokens of one chunk of the gated delta rule");
  chunk.score = true;
  in_layers_of(chunk, MixerKind::kLinearAttention, "gated delta rule layers");
  Option& context = gdn.word("context_parallel", &GdnSection::context_parallel, {"auto", "sequence", "heads"},
                             "how the gated delta rule is divided among context ranks");
  context.needs = {axis_above_one("context", &MeshSection::context)};
  in_layers_of(context, MixerKind::kLinearAttention, "gated delta rule layers");
  context.choice = [](const RunConfig& config) {
    return std::string(config.mesh.context == 1   ? "not divided: there is one context rank"
                       : config.mesh.context == 2 ? "heads where two divide the key heads, else sequence"
                                                  : "sequence");
  };

  Rows<AttentionSection> attention(table, "attention", &RunConfig::attention);
  Option& balance = attention.flag("context_balance", &AttentionSection::context_balance,
                                   "context ranks exchange queries so that causal work is even");
  balance.needs = {axis_above_one("context", &MeshSection::context)};
  in_layers_of(balance, MixerKind::kFullAttention, "full attention layers");
}

}  // namespace lathe
