// SPDX-License-Identifier: Apache-2.0
#include "composed_parts.hpp"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "zea/core/decoder.hpp"

namespace zea {
namespace {

using Json = nlohmann::ordered_json;

/// A beginning of names, and what stands in its place.
struct Renaming {
  std::string from, to;
};

class RenamedSource : public WeightsSource {
 public:
  RenamedSource(const WeightsSource& source, const Json& config,
                const std::vector<Renaming>& renamings)
      : source_(source), config_(config.dump()) {
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

  std::string describe() const override { return source_.describe(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    source_.read(names_.at(name), shape, extent, dtype, target);
  }

 private:
  const WeightsSource& source_;
  std::string config_;
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

ModelPart make_llava(const WeightsSource& composed, const Json& config) {
  const auto& [name, encoder] = *config["encoders"].items().begin();
  Json llava = encoder;
  llava.erase("projector");
  llava["model_type"] = "llava";
  llava["architectures"] = {"LlavaForConditionalGeneration"};
  llava["text_config"] = config["text_config"];
  llava["tie_word_embeddings"] = config["text_config"].value("tie_word_embeddings", false);
  const std::string root = name;
  return {"", std::make_unique<RenamedSource>(
                  composed, llava,
                  std::vector<Renaming>{{root + ".encoder.", "vision_tower."},
                                        {root + ".projector.", "multi_modal_projector."},
                                        {kDecoder + ".", "language_model."}})};
}

}  // namespace

bool is_composed(const WeightsSource& source) {
  const Json config = config_of(source);
  return config.is_object() && config.value("model_type", "") == "composed";
}

std::vector<ModelPart> parts_of(const WeightsSource& composed) {
  const Json config = config_of(composed);
  std::vector<ModelPart> parts;
  const Json& encoders = config.at("encoders");
  if (is_llava(encoders)) {
    parts.push_back(make_llava(composed, config));
    return parts;
  }
  const auto add = [&](const std::string& directory, Json of, const std::string& root) {
    of.erase(kPoolingLayer);
    parts.push_back({directory, std::make_unique<RenamedSource>(
                                    composed, of, std::vector<Renaming>{{root, ""}})});
  };
  for (const auto& [name, encoder] : encoders.items()) {
    const char* key = encoder.contains("vision_config") ? "vision_config" : "audio_config";
    add(name + "/", encoder[key], name + ".encoder.");
    add(name + ".projector/", encoder, name + ".projector.");
  }
  add(kDecoder + "/", config["text_config"], kDecoder + ".");
  return parts;
}

}  // namespace zea
