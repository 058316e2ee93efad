// SPDX-License-Identifier: Apache-2.0
#include "outputs.hpp"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "deck/by_module.hpp"
#include "spec/model_spec.hpp"

namespace zea {
namespace {

using Json = nlohmann::ordered_json;

using Texts = std::map<std::string, std::string>;  ///< files next to the weights

/// A beginning of names, and its replacement.
struct Renaming {
  std::string from, to;
};

class RenamedSource : public SourceOver {
 public:
  RenamedSource(const WeightsSource& source, const Json& config,
                const std::vector<Renaming>& renamings, Texts texts)
      : SourceOver(source), config_(config.dump()), texts_(std::move(texts)) {
    for (const TensorInfo& tensor : source.tensors())
      for (const auto& [from, to] : renamings) {
        if (!tensor.name.starts_with(from)) continue;
        const std::string name = to + tensor.name.substr(from.size());
        tensors_.push_back({name, tensor.shape, tensor.dtype});
        names_.emplace(name, tensor.name);
        break;
      }
    std::ranges::sort(tensors_, {}, &TensorInfo::name);
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    below().read(names_.at(name), shape, extent, dtype, target);
  }
  std::vector<std::string> companions() const override {
    std::vector<std::string> names;
    for (const auto& [name, text] : texts_) names.push_back(name);
    return names;
  }
  std::string companion(const std::string& name) const override {
    const auto found = texts_.find(name);
    return found == texts_.end() ? WeightsSource::companion(name) : found->second;
  }

 private:
  std::string config_;
  Texts texts_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> names_;  ///< by the new ones
};

constexpr const char* kPoolingLayer = "add_pooling_layer";  ///< not in transformers' configs

Json config_of(const WeightsSource& source) {
  return Json::parse(source.config_json(), nullptr, false);
}

/// Whether it is what transformers' model of that name does: whose features are those of a hidden
/// state, registers among them, which has each encoder whole, and gives none the shapes of images.
bool is_llava(const Json& encoders) {
  if (encoders.size() != 1) return false;
  const Json& encoder = encoders.begin().value();
  return encoder.contains("vision_config") && encoder.value("projector", "") == "mlp" &&
         !encoder.value("vision_feature_norm", false) &&
         encoder.value("vision_feature_select_strategy", "") != "patches" &&
         encoder["vision_config"].value("model_type", "") != "siglip2_vision_model" &&
         encoder["vision_config"].value(kPoolingLayer, true);
}

/// Returns the companions that belong to no encoder; an encoder's have its name before their own.
Texts texts_of_decoder(const WeightsSource& model, const Json& encoders) {
  Texts texts;
  for (const std::string& name : model.companions()) {
    const bool is_of_encoder = encoders.contains(name.substr(0, name.find('.')));
    if (!is_of_encoder) texts[name] = model.companion(name);
  }
  return texts;
}

ModelPart make_part(const WeightsSource& model, const std::string& directory, Json config,
                    const std::vector<Renaming>& renamings, Texts texts) {
  config.erase(kPoolingLayer);
  return {directory, std::make_unique<RenamedSource>(model, config, renamings, std::move(texts))};
}

/// Returns a token that tokenizer.json lists besides its vocabulary; null: it lists none of that
/// id.
Json added_token(const std::string& tokenizer, int64_t id) {
  const nlohmann::json file = nlohmann::json::parse(tokenizer, nullptr, false);
  for (const nlohmann::json& token : file.value("added_tokens", nlohmann::json::array()))
    if (token.value("id", int64_t{-1}) == id) return token.value("content", "");
  return {};
}

/// Images of it are those that the encoder was trained with, which need not have the size that its
/// own processor had: the encoder's table of positions decided.
Json image_processor_of(const Json& encoder, const PatchInput& patches) {
  Json processor = encoder[kImageProcessor];
  const int64_t side = patches.image_size;
  const Json square{{"height", side}, {"width", side}};
  const SquareImages images =
      patches.as<SquareImages>() ? *patches.as<SquareImages>() : SquareImages{.crops = false};
  const int64_t shortest = images.shortest_edge > 0 ? images.shortest_edge : side;
  processor["size"] = images.crops ? Json{{"shortest_edge", shortest}} : square;
  processor["do_center_crop"] = images.crops;
  if (images.crops || processor.contains("crop_size")) processor["crop_size"] = square;
  const bool is_bilinear = patches.resampling == Resampling::Bilinear;
  // One without a class becomes LLaVA's usual one, which resizes by its own kernel.
  if (!processor.contains("image_processor_type"))
    processor.emplace("resample", is_bilinear ? 2 : 3);  // as PIL numbers them
  return processor;
}

/// Returns the companions of an encoder, with the image size that it was trained with.
Texts texts_of_encoder(const WeightsSource& composed, const Json& encoder,
                       const EncoderSpec& spec) {
  const std::string before = spec.name + ".";
  Texts texts;
  for (const std::string& name : composed.companions())
    if (name.starts_with(before)) texts[name.substr(before.size())] = composed.companion(name);
  if (!encoder.contains(kImageProcessor) || spec.varies()) return texts;
  const Json images = image_processor_of(encoder, spec.patches());
  constexpr const char* kWhole = "processor_config.json";
  Json whole = texts.contains(kWhole) ? Json::parse(texts[kWhole], nullptr, false) : Json();
  if (whole.contains(kImageProcessor)) {  // which goes before a file of its own
    whole[kImageProcessor] = images;
    texts[kWhole] = whole.dump(2) + "\n";
  } else {
    texts["preprocessor_config.json"] = images.dump(2) + "\n";
  }
  return texts;
}

/// By it transformers makes of an image so many placeholders as it has features, and of a text and
/// images what the model reads. Pixtral's marks rows, which the model was not trained with.
void add_llava_processor(const Json& encoder, const EncoderSpec& spec, Texts& texts) {
  if (!texts.contains("tokenizer.json") || spec.varies()) return;
  const Json token = added_token(texts["tokenizer.json"], spec.placeholder);
  if (token.is_null()) return;
  const std::string select = encoder.value("vision_feature_select_strategy", "default");
  Json processor{{"processor_class", "LlavaProcessor"},
                 {"image_token", token},
                 {"patch_size", spec.patches().patch_size},
                 {"vision_feature_select_strategy", select},
                 {"num_additional_image_tokens", select == "default" ? 1 : 0}};
  if (encoder.contains(kImageProcessor))
    processor[kImageProcessor] = image_processor_of(encoder, spec.patches());
  texts["processor_config.json"] = processor.dump(2) + "\n";
}

ModelPart make_llava(const WeightsSource& composed, const Json& config, const EncoderSpec& spec) {
  const Json::const_iterator first = config["encoders"].begin();
  const std::string& name = first.key();
  const Json& encoder = first.value();
  Json llava = encoder;
  llava.erase("projector");
  llava.erase("placeholder");
  llava["model_type"] = "llava";
  llava["architectures"] = {"LlavaForConditionalGeneration"};
  llava["text_config"] = config["text_config"];
  llava["tie_word_embeddings"] = config["text_config"].value("tie_word_embeddings", false);
  Texts texts = texts_of_decoder(composed, config["encoders"]);
  add_llava_processor(encoder, spec, texts);
  const std::string root = name;
  return make_part(composed, "", llava,
                   {{root + ".encoder.", "vision_tower."},
                    {root + ".projector.", "multi_modal_projector."},
                    {kDecoder + ".", "language_model."}},
                   std::move(texts));
}

std::vector<ModelPart> parts_of_composed(const WeightsSource& composed, const Json& config) {
  std::vector<ModelPart> parts;
  const Json& encoders = config.at("encoders");
  const ModelSpec spec = make_model_spec(config.dump());
  if (is_llava(encoders)) {
    parts.push_back(make_llava(composed, config, spec.encoders.front()));
    return parts;
  }
  for (const auto& [name, encoder] : encoders.items()) {
    const char* key = encoder.contains("vision_config") ? "vision_config" : "audio_config";
    const EncoderSpec& of_name = *std::ranges::find(spec.encoders, name, &EncoderSpec::name);
    parts.push_back(make_part(composed, name + "/", encoder[key], {{name + ".encoder.", ""}},
                              texts_of_encoder(composed, encoder, of_name)));
    parts.push_back(
        make_part(composed, name + ".projector/", encoder, {{name + ".projector.", ""}}, {}));
  }
  Json text = config["text_config"];
  if (config.contains(kWeightsFiles)) text[kWeightsFiles] = config[kWeightsFiles];
  parts.push_back(make_part(composed, kDecoder + "/", text, {{kDecoder + ".", ""}},
                            texts_of_decoder(composed, encoders)));
  return parts;
}

/// Splits a LLaVA with an audio encoder, which transformers' has not: the encoder, its projector,
/// and the rest, which is a LLaVA, or the decoder where there is no image encoder.
std::vector<ModelPart> parts_with_audio(const WeightsSource& model, const Json& config) {
  Json rest = config, projector;
  for (const char* key : {"audio_config", "audio_token_index", "audio_token_id"})
    if (rest.contains(key)) projector[key] = rest[key], rest.erase(key);
  for (const char* key : {"projector_hidden_act", "multimodal_projector_bias"})
    if (rest.contains(key)) projector[key] = rest[key];
  std::vector<ModelPart> parts;
  parts.push_back(
      make_part(model, "audio/", projector["audio_config"], {{"audio_tower.", ""}}, {}));
  parts.push_back(make_part(model, "audio.projector/", projector, {{"audio_projector.", ""}}, {}));
  Texts texts = texts_of_decoder(model, Json::object());
  if (rest.contains("vision_config")) {
    const std::vector<Renaming> kept{{"vision_tower.", "vision_tower."},
                                     {"multi_modal_projector.", "multi_modal_projector."},
                                     {"language_model.", "language_model."}};
    parts.push_back(make_part(model, "llava/", rest, kept, std::move(texts)));
    return parts;
  }
  Json text = rest["text_config"];
  if (rest.value("tie_word_embeddings", false)) text["tie_word_embeddings"] = true;
  parts.push_back(
      make_part(model, kDecoder + "/", text, {{"language_model.", ""}}, std::move(texts)));
  return parts;
}

}  // namespace

std::vector<ModelPart> parts_of(const WeightsSource& model) {
  const Json config = config_of(model);
  const std::string family = config.is_object() ? config.value("model_type", "") : "";
  if (family == "composed") return parts_of_composed(model, config);
  if (family == "llava" && config.contains("audio_config")) return parts_with_audio(model, config);
  return {};
}

}  // namespace zea
