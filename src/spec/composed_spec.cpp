// SPDX-License-Identifier: Apache-2.0
// A model composed of separate models: any number of encoders, each with a projector, and
// a decoder. Its config is zea's: {"model_type": "composed", "text_config": the decoder's,
// "encoders": {name: {"vision_config" or "audio_config", a placeholder, "projector", and what else
// LLaVA's config says of an encoder}}}.
#include "spec/families.hpp"

namespace zea::detail {
ModelSpec make_composed(const ConfigReader& config, const Trainable& trainable) {
  ModelSpec model;
  const Decoder decoder = read_merging_decoder(config.object("text_config"), "llama");
  model.decoder = decoder.spec;
  SpecBuilder builder(model);
  std::vector<int> features;
  const ConfigReader encoders = config.object("encoders");
  for (const std::string& name : encoders.keys()) {
    const ConfigReader encoder = encoders.object(name.c_str());
    const EncoderNames names{name, name + ".encoder.", name + ".projector."};
    const bool sees = encoder.has("vision_config");
    features.push_back(
        sees ? add_image_encoder(builder, model, encoder, names, trainable, {.gives_shapes = true})
             : add_sound_encoder(builder, model, encoder, names, trainable));
    if (sees && encoder.has(kImageProcessor)) {
      const std::string path = name + "." + kImageProcessor;
      const std::string changed =
          read_part_processor(encoder.object_alone(kImageProcessor, path), model.encoders.back());
      if (!changed.empty()) model.notes.push_back(path + ": " + changed);
    }
    const std::string text = encoder.text("placeholder", "");
    model.notes.push_back("features of " + name + " are put in the places of token " +
                          std::to_string(model.encoders.back().placeholder) +
                          (text.empty() ? "" : " (" + text + ")"));
  }
  add_decoder(builder, decoder, std::string(kDecoder) + ".", features, trainable.llm);
  drop_unread_units(model);
  return model;
}

}  // namespace zea::detail
