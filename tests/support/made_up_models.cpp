// SPDX-License-Identifier: Apache-2.0
#include "support/made_up_models.hpp"

#include <algorithm>

#include "spec/families.hpp"

namespace zea::testing {
namespace {

const std::string kProjector = "multi_modal_projector.linear_1.weight";

void merge_images_of_any_size(ModelSpec& model, const std::string& projector) {
  constexpr int64_t kBlock = 2;
  const auto is_of_images = [](const EncoderSpec& e) { return e.modality() == Modality::Image; };
  EncoderSpec& encoder =
      *std::find_if(model.encoders.rbegin(), model.encoders.rend(), is_of_images);
  PatchInput& patches = encoder.patches();
  patches.tiling = ImagesBelow{};
  patches.block = kBlock;
  encoder.drops_first_token = false;
  encoder.projector.merge = kBlock * kBlock;
  model.params[model.param_index(projector)].shape[1] *= encoder.projector.merge;
  record_graphs(model);
}

/// The decoder's parameters are the last ones, as are its units.
void mix_delta_rules(ModelSpec& model, bool by_key_head) {
  const auto is_of_text = [](const auto& of) { return of.module == kDecoder; };
  const auto unit = std::ranges::find_if(model.units, is_of_text);
  const auto param = std::ranges::find_if(model.params, is_of_text);
  const bool trains = param->trainable;
  const std::string embed = param->name, name = "embed_tokens.weight";
  std::vector<int> features;
  for (const UnitSpec& each : model.units)
    if (each.kind == UnitKind::Merge)
      for (size_t i = 1; i < each.inputs.size(); ++i) features.push_back(each.inputs[i].unit);
  model.units.erase(unit, model.units.end());
  model.params.erase(param, model.params.end());

  BlockSpec& block = model.decoder.block;
  block.mixers.emplace_back(DeltaRuleSpec{
      .key_heads = 8, .value_heads = 16, .key_dim = 4, .value_dim = 3, .by_key_head = by_key_head});
  const std::string linear = ".linear_attn.";
  const bool own = !by_key_head;
  detail::Decoder decoder{
      .spec = model.decoder,
      .blocks = {.names = {.attention_norm = ".input_layernorm",
                           .q = ".self_attn.q_proj",
                           .k = ".self_attn.k_proj",
                           .v = ".self_attn.v_proj",
                           .out = ".self_attn.o_proj",
                           .mlp_norm = ".post_attention_layernorm",
                           .gate = ".mlp.gate_proj",
                           .up = ".mlp.up_proj",
                           .down = ".mlp.down_proj",
                           .delta = {.qkv = linear + (own ? "in_proj_qkv" : "in_proj_qkvz"),
                                     .z = own ? linear + "in_proj_z" : "",
                                     .b = linear + (own ? "in_proj_b" : "in_proj_ba"),
                                     .a = own ? linear + "in_proj_a" : "",
                                     .conv = linear + "conv1d",
                                     .decay = linear + "A_log",
                                     .step = linear + "dt_bias",
                                     .norm = linear + "norm",
                                     .out = linear + "out_proj"}},
                 .biases = {},
                 .init = {0.02, 0.02, 0.02, 0.02}},
      .names = {.root = "model.",
                .embed = "embed_tokens",
                .positions = "",
                .layers = "layers.",
                .norm = "norm",
                .head = "lm_head"}};
  decoder.blocks.mixer.assign(static_cast<size_t>(model.decoder.layers), 1);
  if (model.decoder.layers > 1) decoder.blocks.mixer.back() = 0;
  const std::string prefix =
      embed.substr(0, embed.size() - name.size() - decoder.names.root.size());
  detail::SpecBuilder builder(model);
  detail::add_decoder(builder, decoder, prefix, features, trains);
  for (ParamSpec& each : model.params)  // norms of small queries and keys would multiply rounding
    if (each.name.ends_with("conv1d.weight")) each.init = Init::Ones;
  record_graphs(model);
}

}  // namespace

void mix_delta_rules(ModelSpec& model) {
  mix_delta_rules(model, false);
}

void mix_delta_rules_by_key_head(ModelSpec& model) {
  mix_delta_rules(model, true);
}

void adapt_delta_rules(ModelSpec& model) {
  mix_delta_rules(model);
  const nlohmann::json adapters{
      {kDecoder,
       {{"targets", {"in_proj_qkv", "in_proj_z", "in_proj_a", "out_proj"}}, {"rank", 3}}}};
  detail::add_adapters(model, detail::ConfigReader(adapters, "adapters"), {});
  record_graphs(model);
}

void merge_images_of_any_size(ModelSpec& model) {
  merge_images_of_any_size(model, kProjector);
}

void fill_patches(ModelSpec& model) {
  PatchInput& patches = model.encoders.at(0).patches();
  patches.table_side = patches.side();
  merge_images_of_any_size(model);
  patches.table_fit = TableFit::Edges;
  patches.tiling = ImagesFilling{};
  patches.by_pixel = true;
  patches.limit({.most = 30 * patches.patch_size * patches.patch_size});
}

void see_image_windows(ModelSpec& model) {
  merge_images_of_any_size(model);
  BlockSpec& vision = model.encoders.at(0).block;
  const HeadShape heads = vision.attention().heads;
  vision.mixers = {AttentionSpec{.heads = heads, .window = 2}, AttentionSpec{.heads = heads}};
  int block = 0;
  for (UnitSpec& unit : model.units)
    if (unit.encoder == 0 && unit.kind == UnitKind::Block) unit.mixer = block++ % 2;
}

void cut_into_tiles(ModelSpec& model) {
  constexpr int64_t kBlock = 2;
  EncoderSpec& encoder = model.encoders.at(0);
  PatchInput& patches = encoder.patches();
  patches.patches_first = true;
  patches.tiling = NearestTiles{{.least = 1, .most = 3}};
  patches.block = kBlock;
  encoder.drops_first_token = false;
  encoder.projector.merge = kBlock * kBlock;
  model.params[model.param_index(kProjector)].shape[1] *= encoder.projector.merge;
  record_graphs(model);
}

void add_second_image_encoder(ModelSpec& model) {
  const std::string first = model.encoders.at(0).name, second = kSecondEncoder;
  const auto is_of_first = [&](const UnitSpec& unit) { return unit.module == first; };
  const auto count = static_cast<int>(std::ranges::count_if(model.units, is_of_first));
  std::vector<UnitSpec> units(model.units.begin(), model.units.begin() + count);
  for (int u = 0; u < count; ++u) {
    UnitSpec unit = model.units[u];
    unit.name.replace(0, first.size(), second);
    unit.module = second;
    unit.encoder = 1;
    for (UnitInput& input : unit.inputs) input.unit += count;
    for (int& param : unit.params) {
      ParamSpec copy = model.params[param];
      copy.name = second + "." + copy.name;
      copy.module = second;
      param = static_cast<int>(model.params.size());
      model.params.push_back(copy);
    }
    units.push_back(unit);
  }
  for (size_t u = count; u < model.units.size(); ++u) {
    UnitSpec unit = model.units[u];
    for (UnitInput& input : unit.inputs) input.unit += input.unit >= count ? count : 0;
    if (unit.kind == UnitKind::Merge) unit.inputs.push_back({2 * count - 1, true});
    units.push_back(unit);
  }
  model.units = units;
  model.encoders.push_back(model.encoders.front());
  model.encoders.back().name = second;
  model.encoders.back().placeholder = 4;
  merge_images_of_any_size(model, second + "." + kProjector);
}

void mix_windows(ModelSpec& model) {
  BlockSpec& text = model.decoder.block;
  const HeadShape heads = text.attention().heads;
  text.mixers = {AttentionSpec{.heads = heads},
                 AttentionSpec{.heads = heads,
                               .window = 5,
                               .scores = {.scale = 0.3, .softcap = 2},
                               .rope = {.theta = 50}}};
  int block = 0;
  for (UnitSpec& unit : model.units)
    if (unit.module == kDecoder && unit.kind == UnitKind::Block) unit.mixer = block++ % 2;
}

void see_windows(ModelSpec& model) {
  model.decoder.block.attention().window = 7;
}

}  // namespace zea::testing
