// SPDX-License-Identifier: Apache-2.0
// The family table: from a config to units and parameters. A family is one entry here and one
// function that lists its parameters; names are those of the files that transformers'
// save_pretrained writes.
#include "zea/plan/model_spec.hpp"

#include <cmath>
#include <map>

#include "model_config.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

using detail::ConfigReader;

/// Collects parameters and units in walking order.
class SpecBuilder {
 public:
  explicit SpecBuilder(ModelSpec& model) : model_(model) {}

  void start(const std::string& name, const std::string& module, UnitKind kind,
             std::vector<UnitInput> inputs) {
    model_.units.push_back({name, module, kind, {}, std::move(inputs)});
  }
  int last_unit() const { return static_cast<int>(model_.units.size()) - 1; }

  int add(const std::string& name, Shape shape, bool trainable, double std,
          TpCut cut = TpCut::Replicated, bool fused_with_next = false) {
    ParamSpec param;
    param.name = name;
    param.module = model_.units.back().module;
    param.shape = std::move(shape);
    param.trainable = trainable;
    param.std = std;
    param.tp_cut = cut;
    param.fused_with_next = fused_with_next;
    if (param.shape.size() == 1) param.init = Init::Zeros;
    model_.params.push_back(std::move(param));
    const int index = static_cast<int>(model_.params.size()) - 1;
    model_.units.back().params.push_back(index);
    return index;
  }

  void add_norm(const std::string& name, int64_t width, bool trainable, bool bias) {
    model_.params[add(name + ".weight", {width}, trainable, 0)].init = Init::Ones;
    if (bias) add(name + ".bias", {width}, trainable, 0);
  }

  void add_class_token(const std::string& name, int64_t width, bool trainable, double std) {
    model_.params[add(name, {width}, trainable, std)].init = Init::Normal;
  }

  void use(int param) { model_.units.back().params.push_back(param); }

 private:
  ModelSpec& model_;
};

void add_vision_block(SpecBuilder& builder, const VisionConfig& vision, const std::string& layer,
                      bool trainable) {
  // CLIP's own initialisation (transformers CLIPPreTrainedModel._init_weights).
  const double width = static_cast<double>(vision.hidden);
  const double depth = 1 / std::sqrt(2.0 * vision.layers);
  const double in_std = depth / std::sqrt(width), out_std = 1 / std::sqrt(width);
  builder.add_norm(layer + ".layer_norm1", vision.hidden, trainable, true);
  const Shape square{vision.hidden, vision.hidden};
  for (const char* part : {"q_proj", "k_proj", "v_proj"})
    builder.add(layer + ".self_attn." + part + ".weight", square, trainable, in_std, TpCut::Column,
                part[0] != 'v');
  for (const char* part : {"q_proj", "k_proj", "v_proj"})
    builder.add(layer + ".self_attn." + part + ".bias", {vision.hidden}, trainable, 0,
                TpCut::Column, part[0] != 'v');
  builder.add(layer + ".self_attn.out_proj.weight", square, trainable, out_std, TpCut::Row);
  builder.add(layer + ".self_attn.out_proj.bias", {vision.hidden}, trainable, 0);
  builder.add_norm(layer + ".layer_norm2", vision.hidden, trainable, true);
  builder.add(layer + ".mlp.fc1.weight", {vision.intermediate, vision.hidden}, trainable,
              1 / std::sqrt(2 * width), TpCut::Column);
  builder.add(layer + ".mlp.fc1.bias", {vision.intermediate}, trainable, 0, TpCut::Column);
  builder.add(layer + ".mlp.fc2.weight", {vision.hidden, vision.intermediate}, trainable, in_std,
              TpCut::Row);
  builder.add(layer + ".mlp.fc2.bias", {vision.hidden}, trainable, 0);
}

/// Returns the unit that makes hidden state `state` for each state 0..layers.
std::vector<int> add_vision_encoder(SpecBuilder& builder, const VisionConfig& vision,
                                    bool trainable) {
  const std::string root = "vision_tower.";
  builder.start("vision.embed", "vision", UnitKind::PatchEmbed, {});
  const double std = 1 / std::sqrt(static_cast<double>(vision.hidden));
  builder.add_class_token(root + "embeddings.class_embedding", vision.hidden, trainable, std);
  builder.add(root + "embeddings.patch_embedding.weight",
              {vision.hidden, vision.channels, vision.patch_size, vision.patch_size}, trainable,
              0.02);
  builder.add(root + "embeddings.position_embedding.weight", {vision.tokens(), vision.hidden},
              trainable, 0.02);
  builder.add_norm(root + "pre_layrnorm", vision.hidden, trainable, true);
  std::vector<int> states{builder.last_unit()};
  for (int64_t layer = 0; layer < vision.layers; ++layer) {
    builder.start("vision.layers." + std::to_string(layer), "vision", UnitKind::VisionBlock,
                  {{states.back(), false}});
    add_vision_block(builder, vision, root + "encoder.layers." + std::to_string(layer), trainable);
    states.push_back(builder.last_unit());
  }
  return states;
}

void add_projector(SpecBuilder& builder, const ModelSpec& model, const std::vector<int>& states,
                   bool trainable) {
  std::vector<UnitInput> taps;
  for (int64_t tap : model.vision->taps) taps.push_back({states[tap], false});
  const int64_t width = model.vision->hidden * static_cast<int64_t>(taps.size());
  builder.start("vision.projector", "vision", UnitKind::Projector, std::move(taps));
  const std::string root = "multi_modal_projector.";
  const int64_t hidden = model.text.hidden;
  builder.add(root + "linear_1.weight", {hidden, width}, trainable, 0.02, TpCut::Column);
  if (model.projector.bias)
    builder.add(root + "linear_1.bias", {hidden}, trainable, 0, TpCut::Column);
  builder.add(root + "linear_2.weight", {hidden, hidden}, trainable, 0.02, TpCut::Row);
  if (model.projector.bias) builder.add(root + "linear_2.bias", {hidden}, trainable, 0);
}

void add_decoder_block(SpecBuilder& builder, const TextConfig& text, const std::string& layer,
                       bool trainable) {
  const int64_t q = text.heads * text.head_dim, kv = text.kv_heads * text.head_dim;
  builder.add_norm(layer + ".input_layernorm", text.hidden, trainable, false);
  builder.add(layer + ".self_attn.q_proj.weight", {q, text.hidden}, trainable, 0.02, TpCut::Column,
              true);
  builder.add(layer + ".self_attn.k_proj.weight", {kv, text.hidden}, trainable, 0.02, TpCut::Column,
              true);
  builder.add(layer + ".self_attn.v_proj.weight", {kv, text.hidden}, trainable, 0.02,
              TpCut::Column);
  if (text.attention_bias) {
    builder.add(layer + ".self_attn.q_proj.bias", {q}, trainable, 0, TpCut::Column, true);
    builder.add(layer + ".self_attn.k_proj.bias", {kv}, trainable, 0, TpCut::Column, true);
    builder.add(layer + ".self_attn.v_proj.bias", {kv}, trainable, 0, TpCut::Column);
  }
  builder.add(layer + ".self_attn.o_proj.weight", {text.hidden, q}, trainable, 0.02, TpCut::Row);
  if (text.attention_bias)
    builder.add(layer + ".self_attn.o_proj.bias", {text.hidden}, trainable, 0);
  builder.add_norm(layer + ".post_attention_layernorm", text.hidden, trainable, false);
  const Shape up{text.intermediate, text.hidden};
  builder.add(layer + ".mlp.gate_proj.weight", up, trainable, 0.02, TpCut::Column, true);
  builder.add(layer + ".mlp.up_proj.weight", up, trainable, 0.02, TpCut::Column);
  if (text.mlp_bias) {
    builder.add(layer + ".mlp.gate_proj.bias", {text.intermediate}, trainable, 0, TpCut::Column,
                true);
    builder.add(layer + ".mlp.up_proj.bias", {text.intermediate}, trainable, 0, TpCut::Column);
  }
  builder.add(layer + ".mlp.down_proj.weight", {text.hidden, text.intermediate}, trainable, 0.02,
              TpCut::Row);
  if (text.mlp_bias) builder.add(layer + ".mlp.down_proj.bias", {text.hidden}, trainable, 0);
}

void add_decoder(SpecBuilder& builder, const TextConfig& text, const std::string& prefix,
                 int features, bool trainable) {
  builder.start("llm.embed", "llm", UnitKind::TokenEmbed, {});
  const int embed = builder.add(prefix + "model.embed_tokens.weight",
                                {text.vocabulary, text.hidden}, trainable, 0.02, TpCut::Vocabulary);
  if (features >= 0)
    builder.start("llm.merge", "llm", UnitKind::Merge,
                  {{builder.last_unit(), false}, {features, true}});
  for (int64_t layer = 0; layer < text.layers; ++layer) {
    builder.start("llm.layers." + std::to_string(layer), "llm", UnitKind::DecoderBlock,
                  {{builder.last_unit(), false}});
    add_decoder_block(builder, text, prefix + "model.layers." + std::to_string(layer), trainable);
  }
  builder.start("llm.head", "llm", UnitKind::Head, {{builder.last_unit(), false}});
  builder.add_norm(prefix + "model.norm", text.hidden, trainable, false);
  if (text.tied_embeddings)
    builder.use(embed);
  else
    builder.add(prefix + "lm_head.weight", {text.vocabulary, text.hidden}, trainable, 0.02,
                TpCut::Vocabulary);
}

/// Units that no later unit reads are not walked; their parameters are carried, never trained.
void drop_unread_units(ModelSpec& model) {
  std::vector<bool> read(model.units.size(), false);
  read.back() = true;
  for (size_t u = model.units.size(); u-- > 0;)
    if (read[u])
      for (const UnitInput& input : model.units[u].inputs) read[input.unit] = true;
  std::vector<int> position(model.units.size(), -1);
  std::vector<UnitSpec> kept;
  for (size_t u = 0; u < model.units.size(); ++u) {
    if (!read[u]) {
      for (int param : model.units[u].params)
        model.params[param].used = model.params[param].trainable = false;
      continue;
    }
    position[u] = static_cast<int>(kept.size());
    kept.push_back(model.units[u]);
    for (UnitInput& input : kept.back().inputs) input.unit = position[input.unit];
  }
  model.units = std::move(kept);
}

int64_t resolve_tap(const ConfigReader& config, int64_t layer, int64_t layers) {
  const int64_t state = layer < 0 ? layers + 1 + layer : layer;
  if (state < 0 || state > layers)
    config.refuse("vision_feature_layer", std::to_string(layer),
                  std::to_string(-layers - 1) + " to " + std::to_string(layers));
  return state;
}

ModelSpec make_llava(const ConfigReader& config, const Trainable& trainable) {
  ModelSpec model;
  model.text = detail::read_text_config(config.object("text_config"),
                                        config.boolean("tie_word_embeddings", false));
  VisionConfig vision = detail::read_vision_config(config.object("vision_config"));
  for (int64_t layer : config.integers("vision_feature_layer", -2))
    vision.taps.push_back(resolve_tap(config, layer, vision.layers));
  const std::string select = config.text("vision_feature_select_strategy", "default");
  if (select != "default" && select != "full")
    config.refuse("vision_feature_select_strategy", select, "default, full");
  vision.keep_class_token = select == "full";
  model.vision = vision;
  model.projector.activation = config.activation("projector_hidden_act", "gelu");
  model.projector.bias = config.boolean("multimodal_projector_bias", true);
  model.image_token = config.integer("image_token_index", config.integer("image_token_id", 32000));
  if (model.image_token < 0)
    config.refuse("image_token_index", std::to_string(model.image_token), "0 or more");

  SpecBuilder builder(model);
  const std::vector<int> states = add_vision_encoder(builder, vision, trainable.vision);
  add_projector(builder, model, states, trainable.vision_projector);
  const int features = builder.last_unit();
  // Carried: Llava reads hidden states before the encoder's last norm.
  builder.start("vision.post_norm", "vision", UnitKind::VisionBlock, {});
  builder.add_norm("vision_tower.post_layernorm", vision.hidden, false, true);
  add_decoder(builder, model.text, "language_model.", features, trainable.llm);
  drop_unread_units(model);
  return model;
}

ModelSpec make_llama(const ConfigReader& config, const Trainable& trainable) {
  ModelSpec model;
  model.text = detail::read_text_config(config, false);
  SpecBuilder builder(model);
  add_decoder(builder, model.text, "", -1, trainable.llm);
  return model;
}

using MakeFamily = ModelSpec (*)(const ConfigReader&, const Trainable&);
const std::map<std::string, MakeFamily> kFamilies{{"llama", make_llama}, {"llava", make_llava}};

}  // namespace

const char* unit_kind_name(UnitKind kind) {
  constexpr const char* kNames[] = {"patch_embed", "vision_block",  "projector", "token_embed",
                                    "merge",       "decoder_block", "head"};
  return kNames[static_cast<int>(kind)];
}

int64_t ModelSpec::num_parameters() const {
  int64_t total = 0;
  for (const ParamSpec& param : params) total += num_elements(param.shape);
  return total;
}

int ModelSpec::param_index(const std::string& name) const {
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].name == name) return static_cast<int>(i);
  return -1;
}

ModelSpec make_model_spec(const std::string& config_json, const Trainable& trainable) {
  const nlohmann::json json = nlohmann::json::parse(config_json, nullptr, false);
  if (json.is_discarded())
    throw WeightsError("model config is not JSON; expected the text of a Hugging Face config.json");
  const ConfigReader config(json, "config");
  const std::string family = config.text("model_type", "");
  const auto found = kFamilies.find(family);
  if (found == kFamilies.end()) config.refuse("model_type", '"' + family + '"', "llama, llava");
  ModelSpec model = found->second(config, trainable);
  model.family = family;
  return model;
}

}  // namespace zea
