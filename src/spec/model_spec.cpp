// SPDX-License-Identifier: Apache-2.0
// From a config to units and parameters; the tables of families are in families.cpp.
#include "spec/model_spec.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "core/text.hpp"
#include "spec/adapters.hpp"
#include "spec/gemma4_audio.hpp"

namespace zea {
namespace {

using detail::ConfigReader;

constexpr const char* kComposed = "composed";  ///< of zea itself

/// A kind of model that is not a family, or only a part of a model.
struct Known {
  const char *begin, *advice;
};

constexpr const char* kOriginalLlava =
    "; this is a model in the original LLaVA's own form: take one in that of transformers "
    "(llava-hf/... on the Hugging Face hub), or convert it with convert_llava_weights_to_hf.py of "
    "transformers";
constexpr const char* kOriginalInternVl =
    "; this is a model in InternVL's own form: take one in that of transformers "
    "(OpenGVLab/...-hf on the Hugging Face hub)";
constexpr const char* kGemma3n =
    "; Gemma 3n (AltUp, Laurel, a MobileNet as encoder) is not built; Gemma 4 E2B and E4B are";
constexpr const char* kGemma4Unified =
    "; the Gemma 4 models without encoders (12B) are not built; the others, of model_type gemma4, "
    "are";
constexpr const char* kAssistant =
    "; this is a draft model for speculative decoding: take the Gemma 4 model that it assists";
constexpr const char* kImageEncoder =
    "; this is an encoder of images: name it in model.vision.weights, beside a language model in "
    "model.llm.weights";
constexpr const char* kAudioEncoder =
    "; this is an encoder of sound: name it in model.audio.weights, beside a language model in "
    "model.llm.weights";

/// Models by the beginning of their model_type.
constexpr std::array<Known, 12> kKnown{{{"llava_", kOriginalLlava},
                                        {"internvl_chat", kOriginalInternVl},
                                        {"gemma3n", kGemma3n},
                                        {"gemma4_assistant", kAssistant},
                                        {"gemma4_unified_assistant", kAssistant},
                                        {"gemma4_unified", kGemma4Unified},
                                        {"clip", kImageEncoder},
                                        {"siglip", kImageEncoder},
                                        {"dinov2", kImageEncoder},
                                        {"vit", kImageEncoder},
                                        {"pixtral", kImageEncoder},
                                        {"whisper", kAudioEncoder}}};

/// Refuses deeply nested JSON, which would overrun the stack when it is printed.
bool is_shallow(int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
  constexpr int kMaxDepth = 64;
  if (depth > kMaxDepth) throw ConfigError("config", " is JSON that is nested too deeply");
  return true;
}

/// "gpt2, llama, llava"
std::string family_names() {
  std::set<std::string> all;
  for (const auto& [name, make] : detail::composites()) all.insert(name);
  for (const auto& [name, read] : detail::decoders()) all.insert(name);
  return join(all);
}

ModelSpec make_decoder(const ConfigReader& config, detail::ReadDecoder read,
                       const Trainable& trainable) {
  detail::Decoder decoder = read(config);
  if (!decoder.names.mtp.empty()) decoder.spec.mtp_loss = trainable.mtp_loss;
  ModelSpec model;
  model.decoder = decoder.spec;
  model.notes = decoder.notes;
  detail::SpecBuilder builder(model);
  detail::add_decoder(builder, decoder, "", {}, trainable.llm);
  return model;
}

ModelSpec make_family(const std::string& family, const ConfigReader& config,
                      const Trainable& trainable) {
  if (family == kComposed) return detail::make_composed(config, trainable);
  const auto composite = detail::composites().find(family);
  if (composite != detail::composites().end()) return composite->second(config, trainable);
  const auto decoder = detail::decoders().find(family);
  if (decoder == detail::decoders().end())
    config.refuse("model_type", '"' + family + '"',
                  family_names() + detail::advice_on_type(config));
  return make_decoder(config, decoder->second, trainable);
}

/// Other encoders of audio have one length of clips, which their config states.
void read_feature_extractor(const ConfigReader& config, ModelSpec& model) {
  if (!config.has(kFeatureExtractor)) return;
  for (EncoderSpec& encoder : model.encoders) {
    const bool has_chunks = encoder.modality() == Modality::Audio && encoder.mels().chunk > 0;
    if (!has_chunks && !encoder.block.conformer) continue;
    const ConfigReader said = config.object_alone(kFeatureExtractor, kFeatureExtractor);
    if (has_chunks)
      detail::read_audio_processor(said, encoder);
    else
      detail::check_feature_extractor(said, encoder);
    said.refuse_unknown();
  }
}

/// A model without images may lie beside one.
void read_processor(const ConfigReader& config, ModelSpec& model) {
  const auto encoder = std::ranges::find(model.encoders, Modality::Image, &EncoderSpec::modality);
  const bool of_images = config.has(kImageProcessor), of_videos = config.has(kVideoProcessor);
  const auto said = [&](const char* key) { return config.object_alone(key, key); };
  if (encoder == model.encoders.end()) return;
  if (of_images) detail::read_image_processor(said(kImageProcessor), *encoder);
  if (!encoder->patches().video) return;
  if (of_videos)
    detail::read_video_processor(said(kVideoProcessor), *encoder);
  else if (of_images)
    detail::read_video_limits(said(kImageProcessor), *encoder);
}

/// The deck's rate takes the place of the config's, whose keys have the same names in all families.
void set_dropout(ModelSpec& model, const Trainable& trainable) {
  double& residual = model.decoder.block.dropout;
  double& embedding = model.decoder.embedding_dropout;
  const bool drops = residual > 0 || embedding > 0;
  const std::string key = "model." + kDecoder + ".dropout = \"auto\"";
  if (drops && trainable.dropout == 0. && !trainable.all_frozen)
    model.notes.push_back(
        formatted("the config's dropout (resid_pdrop = %g, embd_pdrop = %g) is "
                  "left out; %s trains with it",
                  residual, embedding, key.c_str()));
  if (!drops && !trainable.dropout)
    model.notes.push_back(key + " drops nothing: the config names no resid_pdrop or embd_pdrop");
  if (trainable.dropout) residual = embedding = *trainable.dropout;
}

/// Transformers adds the loss that balances experts to language models alone.
void set_router_loss(const std::string& family, ModelSpec& model) {
  // Qwen3-Omni's thinker adds the router losses to its own.
  if (model.encoders.empty() || family.starts_with("qwen3_omni_moe")) return;
  if (model.decoder.router_aux_loss == 0) return;
  model.decoder.router_aux_loss = 0;
  model.notes.push_back(
      "the config's output_router_logits has no effect beside encoders, as in "
      "transformers; model." +
      kDecoder + ".router_aux_loss_coef balances experts");
}

/// Returns whether a carried tensor is a parameter of the head that trains.
bool is_of_head(const ModelSpec& model, const std::string& name) {
  return std::ranges::any_of(model.units, [&](const UnitSpec& unit) {
    return unit.is_mtp && std::ranges::any_of(unit.params, [&](int param) {
             return model.params[param].name == name;
           });
  });
}

/// Returns whether a carried tensor is a parameter of Gemma 4's audio encoder, which an older zea
/// did not train.
bool is_of_audio(const ModelSpec& model, const std::string& name) {
  const int param = model.param_index(name);
  return param >= 0 && model.block(model.params[param].module).conformer.has_value();
}

/// Adds the tensors that files have and no unit reads.
void add_carried_tensors(const ConfigReader& config, ModelSpec& model) {
  if (!config.has(kWeightsFiles)) return;
  const ConfigReader files = config.object(kWeightsFiles);
  files.ignore_keys({kExperts, "names", "splits_experts"});  // read with the blocks
  if (!files.has("carried")) return;
  const ConfigReader carried = files.object("carried");
  detail::SpecBuilder builder(model);
  builder.start(kDecoder + ".carried", kDecoder, UnitKind::Block, {});
  for (const std::string& name : carried.keys()) {
    const Shape shape = carried.integers(name.c_str());
    for (const int64_t length : shape)
      if (length < 1) carried.refuse(name, carried.dump(name.c_str()), "lengths of 1 or more");
    // Loading compares the shapes.
    if (is_of_head(model, name) || is_of_audio(model, name)) continue;
    if (model.param_index(name) >= 0)
      carried.refuse(name, "a parameter of the model", "tensors that no unit reads");
    model.params[builder.add(name, name, shape, false, 0)].used = false;
  }
  model.units.pop_back();
}

/// Chat models name the token that ends a turn there, and in config.json the one that ends a text.
void read_end_tokens(const ConfigReader& config, ModelSpec& model) {
  if (!config.has(kGenerationConfig)) return;
  std::vector<int64_t>& known = model.decoder.end_tokens;
  const ConfigReader said = config.object_alone(kGenerationConfig, kGenerationConfig);
  if (!said.has("eos_token_id")) return;
  for (const int64_t token : said.integers("eos_token_id", 0))
    if (std::ranges::count(known, token) == 0) known.push_back(token);
}

}  // namespace

const char* unit_kind_name(UnitKind kind) {
  constexpr const char* kNames[] = {"patch_embed", "audio_embed", "keys",  "block",
                                    "projector",   "token_embed", "merge", "head"};
  return kNames[static_cast<int>(kind)];
}

int UnitSpec::index_of(const std::string& role) const {
  const auto found = std::find(roles.begin(), roles.end(), role);
  return found == roles.end() ? -1 : static_cast<int>(found - roles.begin());
}

int UnitSpec::input_read_as(UnitReads reads) const {
  const auto found = std::ranges::find(inputs, reads, &UnitInput::reads);
  return found == inputs.end() ? -1 : static_cast<int>(found - inputs.begin());
}

Shape ParamSpec::tensor_shape() const {
  Shape whole = shape;
  if (part.length > 0) whole[part.dim] = part.length;
  return whole;
}

int64_t ModelSpec::num_parameters() const {
  int64_t total = 0;
  for (const ParamSpec& param : params) total += num_elements(param.shape);
  return total;
}

std::vector<std::vector<int>> ModelSpec::expert_params(const UnitSpec& unit) const {
  if (unit.kind != UnitKind::Block || !mlp(unit).router) return {};
  std::vector<std::vector<int>> found;
  for (const char* role :
       {"experts.up.weight", "experts.up.bias", "experts.down.weight", "experts.down.bias"})
    if (unit.has(role)) found.push_back(params_of(unit, role));
  for (const Adapter& adapter : unit.adapters)
    if (adapter.experts > 0)
      for (const std::string& matrix : {adapter.down, adapter.up})
        found.push_back(params_of(unit, matrix + ".weight"));
  return found;
}

std::set<int> ModelSpec::expert_params() const {
  std::set<int> all;
  for (const UnitSpec& unit : units)
    for (const std::vector<int>& of_linear : expert_params(unit))
      all.insert(of_linear.begin(), of_linear.end());
  return all;
}

int64_t ModelSpec::output_width(const UnitSpec& unit, int64_t tp) const {
  if (unit.kind == UnitKind::Projector) return decoder.block.hidden;
  if (unit.kind != UnitKind::Keys) return hidden(unit.module);
  const HeadShape& heads = attention(unit).heads;
  return 2 * std::max<int64_t>(1, heads.key_value / tp) * heads.dim;
}

bool ModelSpec::caches_latents(const UnitSpec& unit) const {
  return attention(unit).latent &&
         std::ranges::find(unit.adapters, "key_value", &Adapter::role) == unit.adapters.end();
}

int64_t ModelSpec::window(const UnitSpec& unit) const {
  if (unit.kind != UnitKind::Block) return 0;
  const auto* attention = std::get_if<AttentionSpec>(&mixer(unit));
  return attention ? attention->window : 0;
}

bool ModelSpec::has_experts() const {
  return std::ranges::any_of(decoder.block.mlps,
                             [](const MlpSpec& mlp) { return mlp.router.has_value(); });
}

int64_t ModelSpec::num_active_parameters() const {
  int64_t idle = 0;
  for (const ParamSpec& param : params)
    if (!param.used) idle += num_elements(param.shape);
  for (const UnitSpec& unit : units) {
    if (unit.kind != UnitKind::Block || !mlp(unit).router) continue;
    const RouterSpec& router = *mlp(unit).router;
    int64_t elements = 0;
    for (const std::vector<int>& experts : expert_params(unit))
      for (const int param : experts) elements += num_elements(params[param].shape);
    idle += elements / router.experts * (router.experts - router.chosen);
  }
  return num_parameters() - idle;
}

std::vector<std::string> ModelSpec::modules() const {
  std::vector<std::string> names;
  for (const EncoderSpec& encoder : encoders) names.push_back(encoder.name);
  names.push_back(kDecoder);
  return names;
}

const BlockSpec& ModelSpec::block(const std::string& module) const {
  const int encoder = encoder_index(module);
  return encoder < 0 ? decoder.block : encoders[static_cast<size_t>(encoder)].block;
}

std::string ModelSpec::module_names() const {
  return join(modules());
}

bool ModelSpec::has(const std::string& module) const {
  const std::vector<std::string> names = modules();
  return std::count(names.begin(), names.end(), module) > 0;
}

int ModelSpec::encoder_index(const std::string& module) const {
  const auto found = std::ranges::find(encoders, module, &EncoderSpec::name);
  return found == encoders.end() ? -1 : static_cast<int>(found - encoders.begin());
}

bool ModelSpec::trains(const std::vector<int>& some_params) const {
  return std::ranges::any_of(some_params, [&](int param) { return params[param].trainable; });
}

std::vector<bool> ModelSpec::units_with_gradient(
    const std::function<bool(const UnitSpec&)>& runs) const {
  std::vector<bool> has(units.size(), false);
  const auto reads_one = [&](const UnitInput& input) { return has[input.unit]; };
  for (size_t u = 0; u < has.size(); ++u)
    has[u] = runs(units[u]) &&
             (trains(units[u].params) || std::ranges::any_of(units[u].inputs, reads_one));
  return has;
}

bool ModelSpec::makes_features(int unit) const {
  return units[unit].kind == UnitKind::Projector;
}

bool ModelSpec::is_cached(int unit) const {
  const UnitSpec& of = units[unit];
  return of.encoder >= 0 && encoders[static_cast<size_t>(of.encoder)].is_cached &&
         !makes_features(unit);
}

std::vector<int> ModelSpec::read_by_projectors(int encoder) const {
  std::set<int> found;
  for (const UnitSpec& unit : units)
    if (unit.encoder == encoder && unit.kind == UnitKind::Projector)
      for (const UnitInput& input : unit.inputs) found.insert(input.unit);
  return {found.begin(), found.end()};
}

int64_t ModelSpec::feature_width(int encoder) const {
  return std::ssize(read_by_projectors(encoder)) *
         encoders[static_cast<size_t>(encoder)].block.hidden;
}

bool ModelSpec::has_dropout(const std::string& module) const {
  if (block(module).dropout > 0 || (module == kDecoder && decoder.embedding_dropout > 0))
    return true;
  return std::ranges::any_of(units, [&](const UnitSpec& unit) {
    return unit.module == module &&
           std::ranges::any_of(unit.adapters, [](const Adapter& one) { return one.dropout > 0; });
  });
}

bool ModelSpec::is_placeholder(int64_t token) const {
  const auto takes = [&](const EncoderSpec& encoder) { return encoder.is_placeholder(token); };
  return std::ranges::any_of(encoders, takes);
}

bool ModelSpec::has_token(int64_t token) const {
  if (token >= 0 && token < decoder.vocabulary) return true;
  return is_placeholder(token) && decoder.block.layer_input.width == 0;
}

std::vector<int> ModelSpec::params_of(const UnitSpec& unit, const std::string& role) const {
  return params_of(unit, unit.index_of(role));
}

std::vector<int> ModelSpec::params_of(const UnitSpec& unit, int role) const {
  std::vector<int> found;
  int index = 0;
  for (int param : unit.params) {
    if (index == role) found.push_back(param);
    if (!params[param].fused_with_next) ++index;
  }
  return found;
}

int ModelSpec::param_index(const std::string& name) const {
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].name == name) return static_cast<int>(i);
  return -1;
}

ModelSpec make_model_spec(const std::string& config_json, const Trainable& trainable) {
  const nlohmann::json json = nlohmann::json::parse(config_json, is_shallow, false);
  if (json.is_discarded())
    throw ConfigError("config", " is not JSON; expected the text of a Hugging Face config.json");
  const ConfigReader config(json, "config");
  const std::string family = config.text("model_type", "");
  ModelSpec model = make_family(family, config, trainable);
  read_processor(config, model);
  read_feature_extractor(config, model);
  read_end_tokens(config, model);
  set_dropout(model, trainable);
  set_router_loss(family, model);
  add_carried_tensors(config, model);
  model.family = family;
  for (UnitSpec& unit : model.units) unit.encoder = model.encoder_index(unit.module);
  if (config.has(kAdapters)) detail::add_adapters(model, config.object(kAdapters), trainable);
  config.refuse_unknown();
  record_graphs(model);
  return model;
}

std::string with_carried_head(const std::string& config_json, const ModelSpec& model) {
  if (model.decoder.mtp_loss == 0) return config_json;
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(config_json);
  const UnitSpec& block = *std::ranges::find(model.units, true, &UnitSpec::is_mtp);
  const UnitSpec& head = model.units.back();
  for (const int param : block.params)
    if (std::ranges::count(head.params, param) == 0)
      config[kWeightsFiles]["carried"][model.params[param].name] =
          model.params[param].tensor_shape();
  return config.dump();
}

std::string type_advice(const std::string& model_type) {
  if (model_type.starts_with("llava_next") || model_type.starts_with("llava_onevision")) return "";
  for (const auto& [begin, advice] : kKnown)
    if (model_type.starts_with(begin)) return advice;
  return "";
}

std::string detail::advice_on_type(const ConfigReader& config) {
  return config.has("mm_vision_tower") ? kOriginalLlava
                                       : type_advice(config.text("model_type", ""));
}

}  // namespace zea
