// SPDX-License-Identifier: Apache-2.0
// LLaVA-NeXT (LLaVA-1.6): a LLaVA whose images are fitted into one of several resolutions of whole
// tiles. The whole image comes first; of the tiles what shows the image becomes features, row by
// row, and each row ends with one that is learned.
#include "families.hpp"

namespace zea::detail {

ModelSpec make_llava_next(const ConfigReader& config, const Trainable& trainable) {
  config.pass_over({"ignore_index", "image_seq_length", "vocab_size"});
  config.require_boolean("use_image_newline_parameter", true);
  ModelSpec model;
  Decoder decoder = read_merging_decoder(config.object("text_config"), "llama");
  if (config.boolean("tie_word_embeddings", false)) decoder.spec.tied_embeddings = true;
  model.decoder = decoder.spec;
  SpecBuilder builder(model);
  const int features = add_image_encoder(
      builder, model, config,
      {"vision", "vision_tower.", "multi_modal_projector.", "image_newline"}, trainable);
  add_decoder(builder, decoder, "language_model.", {features}, trainable.llm);
  drop_unread_units(model);
  return model;
}

}  // namespace zea::detail
