// SPDX-License-Identifier: Apache-2.0
// Mistral 3 (Mistral Small 3.1): Pixtral's vision transformer, a merger that makes one patch of a
// square of them, LLaVA's projector, and a Mistral decoder. Files leave out what equals the
// defaults of transformers' Mistral3Config.
#include "families.hpp"

namespace zea::detail {

ModelSpec make_mistral3(const ConfigReader& config, const Trainable& trainable) {
  config.object("vision_config").require_text("model_type", "pixtral");
  ModelSpec model;
  Decoder decoder = read_merging_decoder(config.object("text_config"), "mistral");
  // Said by all files of transformers 5; those of version 4 that leave it out are not tied.
  if (config.boolean("tie_word_embeddings", false)) decoder.spec.tied_embeddings = true;
  model.decoder = decoder.spec;
  SpecBuilder builder(model);
  const int features = add_image_encoder(
      builder, model, config, {"vision", "vision_tower.", "multi_modal_projector."}, trainable,
      {.encoder = "pixtral",
       .token = 10,
       .layer = -1,
       .select = "full",
       .bias = false,
       .merges = true});
  add_decoder(builder, decoder, "language_model.", {features}, trainable.llm);
  drop_unread_units(model);
  return model;
}

}  // namespace zea::detail
