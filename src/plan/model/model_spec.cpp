// SPDX-License-Identifier: Apache-2.0
// The table of families: from a config to units and parameters. A family is one entry here and one
// function, in a file of its own, that lists its parameters.
#include "zea/plan/model/model_spec.hpp"

#include <algorithm>
#include <map>

#include "families.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

using detail::ConfigReader;

using MakeFamily = ModelSpec (*)(const ConfigReader&, const Trainable&);
const std::map<std::string, MakeFamily> kFamilies{
    {"gpt2", detail::make_gpt2}, {"llama", detail::make_llama}, {"llava", detail::make_llava}};

/// "gpt2, llama, llava"
std::string family_names() {
  std::string names;
  for (const auto& [name, make] : kFamilies) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace

const char* unit_kind_name(UnitKind kind) {
  constexpr const char* kNames[] = {"patch_embed", "vision_block", "projector",
                                    "audio_embed", "audio_block",  "audio_projector",
                                    "token_embed", "merge",        "decoder_block",
                                    "gpt2_block",  "head"};
  return kNames[static_cast<int>(kind)];
}

int64_t ModelSpec::num_parameters() const {
  int64_t total = 0;
  for (const ParamSpec& param : params) total += num_elements(param.shape);
  return total;
}

std::vector<std::string> ModelSpec::encoders() const {
  std::vector<std::string> names;
  if (vision) names.push_back("vision");
  if (audio) names.push_back("audio");
  return names;
}

std::vector<std::string> ModelSpec::modules() const {
  std::vector<std::string> names = encoders();
  names.push_back(kDecoder);
  return names;
}

bool ModelSpec::has(const std::string& module) const {
  const std::vector<std::string> names = modules();
  return std::count(names.begin(), names.end(), module) > 0;
}

int ModelSpec::encoder_index(const std::string& module) const {
  const std::vector<std::string> names = encoders();
  const auto found = std::find(names.begin(), names.end(), module);
  return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

Modality ModelSpec::modality(const std::string& encoder) const {
  return encoder == "vision" ? Modality::Image : Modality::Audio;
}

int64_t ModelSpec::hidden(const std::string& module) const {
  if (module == "vision") return vision.value().hidden;
  return module == "audio" ? audio.value().hidden : text.hidden;
}

bool ModelSpec::makes_features(int unit) const {
  return units[unit].kind == UnitKind::Projector || units[unit].kind == UnitKind::AudioProjector;
}

ItemShape ModelSpec::item_shape(const std::string& encoder) const {
  if (encoder == "vision") {
    const int64_t tokens = vision.value().tokens(), features = vision->features();
    return {tokens, features, tokens - features};
  }
  ZEA_ASSERT(encoder == "audio");
  return {audio.value().positions, audio.value().positions};
}

HeadShape ModelSpec::heads(const std::string& module) const {
  if (module == "vision") return {vision->heads, vision->heads, vision->hidden / vision->heads};
  if (module == "audio") return {audio->heads, audio->heads, audio->hidden / audio->heads};
  return {text.heads, text.kv_heads, text.head_dim};
}

int64_t ModelSpec::placeholder(const std::string& encoder) const {
  return encoder == "vision" ? image_token : audio_token;
}

bool ModelSpec::is_placeholder(int64_t token) const {
  return (vision && token == image_token) || (audio && token == audio_token);
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
  if (found == kFamilies.end()) config.refuse("model_type", '"' + family + '"', family_names());
  ModelSpec model = found->second(config, trainable);
  model.family = family;
  for (UnitSpec& unit : model.units) unit.encoder = model.encoder_index(unit.module);
  return model;
}

}  // namespace zea
