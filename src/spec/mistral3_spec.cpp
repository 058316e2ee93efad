// SPDX-License-Identifier: Apache-2.0
// Mistral 3 (Mistral Small 3.1): Pixtral's vision transformer, a merger that makes one patch of a
// square of them, LLaVA's projector, and a Mistral decoder. Files leave out what equals the
// defaults of transformers' Mistral3Config.
#include "spec/families.hpp"

namespace zea::detail {

ModelSpec make_mistral3(const ConfigReader& config, const Trainable& trainable) {
  config.object("vision_config").require_text("model_type", "pixtral");
  return make_with_images(config, trainable, {"vision", "vision_tower.", "multi_modal_projector."},
                          {.encoder = "pixtral",
                           .token = 10,
                           .layer = -1,
                           .select = "full",
                           .bias = false,
                           .merges = true},
                          "mistral");
}

}  // namespace zea::detail
